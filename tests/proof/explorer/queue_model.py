"""The modelled queue: at least once, and no more than that.

An entry is one message as the producer sent it; a duplicate by the producer is another entry with the same key. It is
out with whoever it was delivered to until it is acked, parked or dead-lettered by any of them: a late ack from a
worker that had lost the message counts too, which is the worst that a real broker does.
"""

from __future__ import annotations

from typing import Literal

State = Literal["open", "acked", "parked", "dead"]


class QueuedMessage:
    """One message in the queue."""

    __slots__ = ("deliveries", "held", "key", "not_before", "number", "probe", "ready", "state")

    def __init__(self, number: int, key: str, *, probe: bool = False) -> None:
        self.number = number
        self.key = key
        self.probe = probe
        self.state: State = "open"
        self.ready = True  # to be delivered (again)
        self.not_before = 0  # when, at the earliest
        self.held: list[int] = []  # the deliveries that are out
        self.deliveries = 0

    def taken(self, delivery: int) -> None:
        self.ready = False
        self.held.append(delivery)
        self.deliveries += 1

    def back(self, delivery: int, not_before: int) -> None:
        """``delivery`` has ended without a word, or with "again": the message is delivered anew, unless it still is
        or already was with another."""
        if delivery not in self.held:
            return
        self.held.remove(delivery)
        if self.state == "open" and not self.held and not self.ready:
            self.ready = True
            self.not_before = not_before

    def settle(self, delivery: int, state: State) -> None:
        if delivery in self.held:
            self.held.remove(delivery)
        if self.state == "open":
            self.state = state
            self.ready = False


class SimulatedQueue:
    """Every entry, in the order in which it was sent."""

    def __init__(self, keys: int, copies: int) -> None:
        self.entries: list[QueuedMessage] = []
        for _ in range(copies):
            for key in range(keys):
                self.send(f"k{key}")

    def send(self, key: str, *, probe: bool = False) -> QueuedMessage:
        entry = QueuedMessage(len(self.entries), key, probe=probe)
        self.entries.append(entry)
        return entry

    def ready(self, now: int) -> list[QueuedMessage]:
        """What may be delivered now: one entry of each key, since copies differ in nothing."""
        found: dict[str, QueuedMessage] = {}
        for entry in self.entries:
            if entry.ready and entry.not_before <= now and entry.state == "open":
                found.setdefault(entry.key, entry)
        return list(found.values())

    def next_due(self) -> int | None:
        return min((entry.not_before for entry in self.entries if entry.ready and entry.state == "open"), default=None)

    def unsettled(self) -> list[QueuedMessage]:
        return [entry for entry in self.entries if entry.state == "open"]
