"""All support for BabelQueue: its envelope, its headers, its lists on Redis, and a seen-set for its consumers."""

from .envelope import BabelQueue as BabelQueue
