"""The clock of a store or a broker that runs in this process or on a file, and so has no server to ask for the time."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class Clock(Protocol):
    """Where such a store or broker gets its time from. Tests inject a `ManualClock`."""

    def now(self) -> int:
        """Microseconds since the epoch."""

    def monotonic(self) -> float:
        """Seconds since some fixed moment; never goes backwards."""

    @property
    def manual(self) -> bool:
        """Whether only the test moves the time. Then nothing happens by itself: there is no heartbeat either."""
