"""The demo is run as the command is: with the fixtures of `tests.cli`."""

from tests.cli.conftest import environment, run, sabotaged, temporary, without

__all__ = ["environment", "run", "sabotaged", "temporary", "without"]
