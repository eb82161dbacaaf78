"""The modelled queue, which delivers at least once.

An entry is one message as the producer sent it; a duplicate by the producer is another entry with the same key. It
stays with the workers that it was delivered to until any of them acks, parks or dead-letters it: a late ack from a
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
        self.held: list[int] = []  # the deliveries that are not settled
        self.deliveries = 0

    def take(self, delivery: int) -> None:
        self.ready = False
        self.held.append(delivery)
        self.deliveries += 1

    def give_back(self, delivery: int, not_before: int) -> None:
        """End ``delivery`` without settling it: the message is delivered again, unless another worker has it."""
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
    """A queue of entries, in the order in which they were sent."""

    def __init__(self, keys: int, copies: int) -> None:
        self.entries: list[QueuedMessage] = []
        for _ in range(copies):
            for key in range(keys):
                self.send(f"k{key}")

    def send(self, key: str, *, probe: bool = False) -> QueuedMessage:
        entry = QueuedMessage(len(self.entries), key, probe=probe)
        self.entries.append(entry)
        return entry

    def list_ready(self, now: int) -> list[QueuedMessage]:
        """Return the entries that may be delivered now: one of each key, since copies do not differ."""
        first_of_key: dict[str, QueuedMessage] = {}
        for entry in self.entries:
            if entry.ready and entry.not_before <= now and entry.state == "open":
                first_of_key.setdefault(entry.key, entry)
        return list(first_of_key.values())

    def next_due(self) -> int | None:
        return min((entry.not_before for entry in self.entries if entry.ready and entry.state == "open"), default=None)

    def unsettled(self) -> list[QueuedMessage]:
        return [entry for entry in self.entries if entry.state == "open"]
