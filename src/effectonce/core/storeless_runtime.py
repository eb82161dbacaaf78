"""`StorelessRuntime`: the runtime of runs that no store grants, which the worker's transactions have."""

from __future__ import annotations

import time

from .events import Events


class StorelessRuntime(Events):
    """A `RunRuntime` with a clock, and without hooks: the worker emits the events of its transactions itself."""

    def __init__(self) -> None:
        super().__init__()
        self.monotonic = time.monotonic
