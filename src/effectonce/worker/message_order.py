"""The order of messages: of one ordering key (or one key and its duplicates), only one message runs at a time.

A lane is the messages of one ordering key, or of one key. Those behind the first of a lane wait until it is settled.
Where the first is delayed, those behind it are delayed with it, and `DelayedLanes` remembers their order until they are
redelivered.

Both classes belong to one `QueueConsumer`, on its event loop. They keep nothing that a broker or a store does not know:
after a crash the broker redelivers all of it, and another process orders it again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from msgspec import Struct

from .jobs import Job

DELAY_STEP_S: Final = 0.02
"""Messages behind a delayed one come this much later than the one before them."""

OVERDUE_S: Final = 2.0
"""How long after it is due the first message of a delayed lane is waited for, where the broker keeps no order per key.
After that, others may come first."""

MIN_LANES_TO_TRIM: Final = 10_000
"""With so many delayed lanes those that are overdue are forgotten, and again whenever twice as many are left: an outage
delays more lanes than that, and looking at all of them for each message would stop the worker."""


class Lanes:
    """Which of the received messages may start, and which wait behind another one of their lane.

    Which message is the first of a lane is not stored, only that its lane is held. A lane is held from the `add` that
    returns True until `remove_first` finds nothing behind: once for each message that was let through, when it has left
    the worker, whatever became of it. Messages that run together (`take_batchable`) hold their lane together, so
    `remove_first` is called for the last of them only (`QueueConsumer.ack_batched`).
    """

    def __init__(self) -> None:
        self._held: set[str] = set()
        self._behind: dict[str, deque[Job]] = {}  # what waits, by lane; most lanes have nothing here

    def add(self, job: Job) -> bool:
        """Queue ``job`` in its lane. Returns whether it is the first there, so that it may start."""
        if job.lane not in self._held:
            self._held.add(job.lane)
            return True
        self._behind.setdefault(job.lane, deque()).append(job)
        return False

    def remove_first(self, lane: str) -> Job | None:
        """The first message of ``lane`` is settled. Returns the next one, which may start now."""
        behind = self._behind.get(lane)
        if behind is None:
            self._held.discard(lane)
            return None
        following = behind.popleft()
        if not behind:
            del self._behind[lane]
        return following

    def remove_waiting(self, lane: str) -> list[Job]:
        """Take out all messages that wait behind the first of ``lane``, in their order."""
        return list(self._behind.pop(lane, ()))

    def take_batchable(self, job: Job, limit: int) -> list[Job]:
        """Take the messages out of the lane of ``job`` that may share a transaction with it: up to ``limit - 1`` that
        wait behind it, are for the same handler and were never delivered before. Returns ``job`` and them, in their
        order."""
        jobs = [job]
        behind = self._behind.pop(job.lane, None)
        while behind and len(jobs) < limit and behind[0].route is job.route and not behind[0].redelivered:
            jobs.append(behind.popleft())
        if behind:
            self._behind[job.lane] = behind
        return jobs

    def put_back(self, jobs: Sequence[Job]) -> None:
        """Put ``jobs``, which `take_batchable` took from one lane and which are not done, back behind its first
        message."""
        self._behind.setdefault(jobs[0].lane, deque()).extendleft(reversed(jobs))


class _DelayedLane(Struct):
    """The ids of messages that were given back, in their order, and when the first of them is due again."""

    due_at: float
    ids: deque[str]
    settler_round: int  # the broker has all of them back when this round of the settler is done


class DelayedLanes:
    """The messages of ordering keys that were given back for a while: none may overtake another one.

    A broker that keeps order per key redelivers them in their order. Only messages that were received before it had all
    of them back may overtake them, so it is enough to remember them until then (`forget_sent`). With other brokers they
    are remembered until they are redelivered, or long overdue: another consumer may have got the first one.
    """

    def __init__(self, now: Callable[[], float], *, broker_keeps_order: bool) -> None:
        self._now = now
        self._broker_keeps_order = broker_keeps_order
        self._lanes: dict[str, _DelayedLane] = {}  # in the order of their rounds: `forget_sent` stops at the first
        self._next_trim = MIN_LANES_TO_TRIM  # the number of lanes at which the overdue ones are forgotten

    def delay(self, lane: str, delay: float, ids: Iterable[str], settler_round: int) -> None:
        """Expect messages ``ids`` of ``lane`` after ``delay`` seconds, in this order. Those of the lane that were given
        back earlier, and are not redelivered yet, come after them. All go back in the settler's ``settler_round``."""
        now = self._now()
        order = deque(ids)
        earlier = self._lanes.pop(lane, None)
        if earlier is not None and not self._is_overdue(earlier, now):
            first = frozenset(order)
            order.extend(id for id in earlier.ids if id not in first)
        if len(self._lanes) >= self._next_trim:
            self._lanes = {name: delayed for name, delayed in self._lanes.items() if not self._is_overdue(delayed, now)}
            self._next_trim = max(MIN_LANES_TO_TRIM, 2 * len(self._lanes))
        self._lanes[lane] = _DelayedLane(now + delay, order, settler_round)

    def admit(self, job: Job, settler_round: int) -> float | None:
        """Let ``job`` through if its turn in its lane has come, and forget it. Otherwise remember it, and return for
        how many seconds it has to wait: it goes back in the settler's ``settler_round``. Call this once per delivery: a
        second call would take the message for one that overtakes."""
        delayed = self._lanes.get(job.lane)
        if delayed is None:
            return None
        now = self._now()
        if self._is_overdue(delayed, now):
            del self._lanes[job.lane]
            return None
        if delayed.ids[0] == job.message.id:
            delayed.ids.popleft()
            if not delayed.ids:
                del self._lanes[job.lane]
            return None
        if job.message.id not in delayed.ids:
            delayed.ids.append(job.message.id)
        delayed.settler_round = settler_round
        self._lanes[job.lane] = self._lanes.pop(job.lane)  # to the end: its round is the latest
        return max(delayed.due_at - now, 0.0) + delayed.ids.index(job.message.id) * DELAY_STEP_S

    def forget_sent(self, rounds_done: int) -> None:
        """Forget the lanes that the broker has back: it keeps their order from now on. ``rounds_done`` is how many
        rounds of the settler are done. Call this before each receipt from a broker that keeps order per key, and only
        there."""
        while self._lanes:
            lane, delayed = next(iter(self._lanes.items()))
            if delayed.settler_round > rounds_done:
                return
            del self._lanes[lane]

    def _is_overdue(self, delayed: _DelayedLane, now: float) -> bool:
        """Whether another consumer has got the first message."""
        return not self._broker_keeps_order and delayed.due_at < now - OVERDUE_S
