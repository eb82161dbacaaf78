"""Tool calls of agents, each of which takes effect once."""
