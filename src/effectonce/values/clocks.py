"""The clocks of stores and brokers that have no server to ask; see `contracts.Clock`."""

from __future__ import annotations

import time


class SystemClock:
    """Wall-clock time at the start, carried on by the monotonic clock: it never jumps. For one process."""

    manual = False
    monotonic = staticmethod(time.monotonic)

    def __init__(self) -> None:
        self.offset = time.time_ns() - time.monotonic_ns()

    def now(self) -> int:
        return (self.offset + time.monotonic_ns()) // 1000


class MachineClock:
    """The wall clock, which every process on this machine reads alike. It may be set: keep it disciplined."""

    manual = False
    monotonic = staticmethod(time.monotonic)

    def now(self) -> int:
        return time.time_ns() // 1000
