"""Dead letters: list, show, redrive and purge the messages that a worker gave up."""
