"""The clocks of stores and brokers without a server, whose time would be theirs; see `contracts.Clock`."""

from __future__ import annotations

import time


class SystemClock:
    """The wall clock read once, then advanced by the monotonic clock: it never jumps. For one process."""

    manual = False
    monotonic = staticmethod(time.monotonic)

    def __init__(self) -> None:
        self.offset = time.time_ns() - time.monotonic_ns()

    def now(self) -> int:
        return (self.offset + time.monotonic_ns()) // 1000


class MachineClock:
    """The wall clock, which is the same for every process on this machine. It jumps when it is set: run NTP."""

    manual = False
    monotonic = staticmethod(time.monotonic)

    def now(self) -> int:
        return time.time_ns() // 1000
