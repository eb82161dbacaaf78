"""The worker: it receives messages from a broker and runs a handler for each, once."""

from .worker import Worker as Worker
