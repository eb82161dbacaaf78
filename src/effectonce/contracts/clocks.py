"""The clock of a store or a broker that has no server to ask."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class Clock(Protocol):
    """Where a store without a server gets its time from. Tests inject a `ManualClock`."""

    def now(self) -> int:
        """Microseconds since the epoch."""
        ...

    def monotonic(self) -> float: ...

    @property
    def manual(self) -> bool:
        """Whether time moves only by hand; nothing then happens by itself, the heartbeat included."""
        ...
