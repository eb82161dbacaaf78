"""Dead letters: list, show, redrive and purge the messages that a worker gave up."""

from .queue import DeadLetterQueue as DeadLetterQueue
