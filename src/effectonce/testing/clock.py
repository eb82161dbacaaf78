"""A clock that moves only when a test advances it."""

from __future__ import annotations

import threading

from effectonce.values.durations import Duration, micros

#: Where a `ManualClock` starts by default: 2026-01-01T00:00:00Z.
START_US = 1_767_225_600_000_000


class ManualClock:
    """A `contracts.Clock` for tests: leases end and records expire, and no test has to sleep.

    Both its readings move together and only by `advance`, so that a test can stand exactly on a boundary.
    It may be read and advanced from several threads.
    """

    manual = True

    def __init__(self, start: int = START_US) -> None:
        self._start = start
        self._now = start
        self._lock = threading.Lock()

    def now(self) -> int:
        """Return microseconds since the epoch."""
        return self._now

    def monotonic(self) -> float:
        """Return seconds since this clock was made."""
        return (self._now - self._start) / 1_000_000

    def advance(self, by: Duration) -> int:
        """Move forward by ``by`` (``"30s"``, a `timedelta`, or seconds) and return the new time."""
        return self.advance_micros(micros(by, "advance"))

    def advance_micros(self, by: int) -> int:
        """Move forward by exactly ``by`` microseconds and return the new time. Time never runs backwards."""
        if by < 0:
            raise ValueError(f"a clock cannot be moved back, got {by}")
        with self._lock:
            self._now += by
            return self._now

    def __repr__(self) -> str:
        return f"ManualClock({self._now})"
