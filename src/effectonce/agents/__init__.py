"""Tool calls of agents, each of which takes effect once."""

from .tools import tool_once as tool_once
