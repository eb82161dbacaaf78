"""How often a message was tried, as far as this process knows.

Brokers count deliveries, not attempts: a message that was delivered and given back untried was not tried. Some brokers
do not count at all; then the attempts of this process are counted here. The counts are lost with the process. Then
a message starts again at one where the broker does not count, and where it does, deliveries that were given back
untried count as attempts.
"""

from __future__ import annotations

from typing import Final

from effectonce.contracts import Delivery

from .jobs import Job

MAX_MESSAGES: Final = 10_000
"""How many messages are remembered; the oldest are forgotten first."""


class AttemptCounts:
    """Counts by message id, of messages that were given back and will be redelivered."""

    def __init__(self, *, broker_counts: bool) -> None:
        self._broker_counts = broker_counts
        self._attempts: dict[str, int] = {}  # where the broker does not count
        self._untried: dict[str, int] = {}  # deliveries that were given back untried, where it does
        self._delayed: dict[str, int] = {}  # deliveries that were delayed because the first one was running

    def set_attempt(self, delivery: Delivery) -> None:
        """Where the broker does not count: set ``delivery.attempt`` to one more than this process has counted."""
        if not self._broker_counts:
            delivery.attempt = self._attempts.get(delivery.packet.id, 0) + 1

    def count_untried(self, delivery: Delivery) -> int:
        """How many deliveries of this message were given back untried. 0 where the broker does not count them."""
        return self._untried.get(delivery.packet.id, 0)

    def add_attempt(self, job: Job) -> None:
        """``job`` was tried, and is given back."""
        if not self._broker_counts:
            _remember(self._attempts, job.delivery.packet.id, job.delivery.attempt)

    def add_untried(self, job: Job) -> None:
        """``job`` is given back untried; the broker will count that delivery."""
        if self._broker_counts:
            _remember(self._untried, job.delivery.packet.id, job.untried + 1)

    def add_delayed(self, job: Job) -> int:
        """``job`` is delayed because another delivery runs it. Returns how often it has been by now, as far as known:
        by the broker's count, which goes on in other processes, or by this one's."""
        delayed = self._delayed.get(job.delivery.packet.id, 0) + 1
        _remember(self._delayed, job.delivery.packet.id, delayed)
        return max(delayed, job.delivery.attempt)

    def forget(self, job: Job) -> None:
        """``job`` is settled for good."""
        self._attempts.pop(job.delivery.packet.id, None)
        self._untried.pop(job.delivery.packet.id, None)
        self._delayed.pop(job.delivery.packet.id, None)


def _remember(counts: dict[str, int], id: str, count: int) -> None:
    if not id:
        return
    if len(counts) >= MAX_MESSAGES:
        del counts[next(iter(counts))]
    counts[id] = count
