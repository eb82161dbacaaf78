"""Dead letters: list, show, redrive and remove what a worker gave up."""

from .queue import DeadLetterQueue as DeadLetterQueue
