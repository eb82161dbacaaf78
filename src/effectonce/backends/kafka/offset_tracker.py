"""The unsettled messages of a Kafka consumer: which one to deliver next, and which offset to commit.

Kafka keeps one offset per partition and group, and takes all messages before it as done. So the first unsettled offset
is committed, and messages that are settled beyond it would be redelivered after a rebalance. To avoid that, the commit
carries a note in its metadata: how far the partition was read, and which of the offsets up to there are unsettled. The
next owner of the partition reads the note and skips the settled ones. A note that is missing, too long, or written by
another program costs redeliveries, never a message.

A nacked message stays here: its offset stays unsettled, and it is delivered again when its delay is over. Messages with
the same key wait behind it. If this process dies, they are all read from Kafka again, at once: the delay is lost, the
message is not.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections import deque
from collections.abc import Iterable
from itertools import accumulate, count
from operator import attrgetter
from typing import Any, Final, NamedTuple

from msgspec import Struct

from effectonce.contracts import Delivery

from .records import read_packet

#: Reading stops while so many messages are delayed: nacked, or behind a nacked one.
MAX_DELAYED: Final = 1000
#: How many messages are read ahead of `take`, at least.
MIN_READ_AHEAD: Final = 500
#: The longest note in a commit; the broker's limit (``offset.metadata.max.bytes``) is 4096.
MAX_NOTE_CHARS: Final = 4000
NOTE_VERSION: Final = "eo1"
#: How long a note is without its distances. Its first number has at most 19 digits.
NOTE_HEAD_CHARS: Final = len(NOTE_VERSION) + 21

#: What a message must stay in order with: its partition and its key, or its offset where it has no key.
OrderingGroup = tuple[int, bytes | int]


class Commit(NamedTuple):
    """What is committed for one partition: the first unsettled offset, and a note about those beyond it."""

    partition: int
    offset: int
    note: str


class AssignedPartition:
    """One partition, from its assignment to its revocation."""

    def __init__(self, partition: int, offset: int, note: str | None) -> None:
        self.partition = partition
        self.revoked = False
        #: The unsettled offsets, in order: the delivery of each; None: it is not delivered now.
        self._unsettled: dict[int, Delivery | None] = {}
        #: How many of them are delivered now.
        self.delivered_count = 0
        #: The offset behind the last message that was read; None: none was.
        self.read_end: int | None = None
        self.committed = Commit(partition, offset, note or "")
        self._noted_end, self._noted_unsettled = read_note(offset, note)

    def record_read(self, offset: int) -> bool:
        """Record that a message was read. False where a former owner of the partition has settled it."""
        self.read_end = offset + 1
        if offset < self._noted_end and offset not in self._noted_unsettled:
            return False
        self._unsettled[offset] = None
        return True

    def deliver(self, offset: int, delivery: Delivery) -> None:
        """Record that the message at ``offset``, which is not delivered now, is delivered."""
        self._unsettled[offset] = delivery
        self.delivered_count += 1

    def owns(self, offset: int, delivery: Delivery) -> bool:
        """Whether ``delivery`` is the unsettled one of ``offset``."""
        return not self.revoked and self._unsettled.get(offset) is delivery

    def take_back(self, offset: int) -> None:
        """Record that the message at ``offset``, which is delivered, was nacked."""
        self._unsettled[offset] = None
        self.delivered_count -= 1

    def settle(self, offset: int) -> None:
        """Record that the message at ``offset``, which is delivered, was acked."""
        del self._unsettled[offset]
        self.delivered_count -= 1

    def due_commit(self) -> Commit | None:
        """The commit that would record the partition's progress; None: there is nothing new to record."""
        if self.read_end is None:
            return None
        first = next(iter(self._unsettled), self.read_end)
        commit = Commit(self.partition, first, write_note(first, self.read_end, self._unsettled))
        return commit if commit != self.committed else None


def write_note(first: int, end: int, unsettled: Iterable[int]) -> str:
    """Write that all offsets from ``first`` to before ``end`` are settled, except the ``unsettled`` ones.

    ``first`` is the first of ``unsettled``, or equal to ``end``. The note is ``eo1``, the number of offsets that it is
    about, and the distance of each unsettled offset but the first from the one before it: ``eo1 6 2 3`` at the offset
    10 says that 10, 12 and 15 are unsettled, and 11, 13 and 14 settled. '' where nothing beyond ``first`` is settled.
    """
    previous = first
    distances: list[str] = []
    length = NOTE_HEAD_CHARS
    for offset in unsettled:
        if offset == first:
            continue
        distance = str(offset - previous)
        length += len(distance) + 1
        if length > MAX_NOTE_CHARS:
            end = offset  # the note ends here; settled messages beyond it may be redelivered
            break
        distances.append(distance)
        previous = offset
    settled = end - first - 1 - len(distances)
    return " ".join((NOTE_VERSION, str(end - first), *distances)) if settled > 0 else ""


def read_note(first: int, note: str | None) -> tuple[int, frozenset[int]]:
    """Read the offset before which the note ends, and the unsettled offsets up to there. ``first`` and none where
    `write_note` did not write the note."""
    if note is None or len(note) > MAX_NOTE_CHARS:
        return first, frozenset()
    version, *numbers = note.split(" ")
    if version != NOTE_VERSION or first < 0 or not numbers or not all(number.isdecimal() for number in numbers):
        return first, frozenset()
    length, *distances = map(int, numbers)
    return first + length, frozenset(accumulate(distances, initial=first))


class _ReadMessage(Struct, eq=False):
    """A message that was read; the `Delivery.handle` once it is delivered."""

    partition: AssignedPartition
    message: Any  # confluent_kafka.Message
    offset: int
    group: OrderingGroup
    due: float = 0.0  # on the monotonic clock: when a nacked message may be delivered again


class OffsetTracker:
    """The messages of one consumer, from when they are read until they are settled. Not thread-safe: `GroupMember`
    holds its lock around every call."""

    def __init__(self, queue: str, prefetch: int) -> None:
        self._queue = queue
        self._prefetch = prefetch
        self._partitions: dict[int, AssignedPartition] = {}
        self._ready: deque[_ReadMessage] = deque()
        self._delayed: dict[OrderingGroup, list[_ReadMessage]] = {}  # each list in order
        self._due: list[tuple[float, int, OrderingGroup]] = []  # a heap: when the first message of a group is due
        self._tie_breaker = count()  # groups are not comparable, so the heap must never have to compare two

    # -- assignment

    def assign(self, partition: int, offset: int, note: str | None) -> None:
        self._partitions[partition] = AssignedPartition(partition, offset, note)

    def revoke(self, partitions: Iterable[int]) -> list[Commit]:
        """Forget partitions that another consumer gets: deliveries from them are stale now (F53: a commit after a
        rebalance). Returns the commits that are due for them."""
        revoked = [self._partitions[partition] for partition in partitions if partition in self._partitions]
        last_commits = _due_commits(revoked)
        for assigned in revoked:
            del self._partitions[assigned.partition]
            assigned.revoked = True
        self._ready = deque(read for read in self._ready if not read.partition.revoked)
        for group, messages in list(self._delayed.items()):
            if messages[0].partition.revoked:  # a group is within one partition
                del self._delayed[group]
        return last_commits

    def revoke_all(self) -> None:
        self.revoke(list(self._partitions))

    # -- messages

    def room(self) -> int:
        """How many more messages may be read."""
        if sum(map(len, self._delayed.values())) >= MAX_DELAYED:
            return 0
        return max(self._prefetch, MIN_READ_AHEAD) - len(self._ready)

    def add(self, messages: Iterable[Any]) -> None:
        """Add messages that were read."""
        for message in messages:
            partition, offset, key = message.partition(), message.offset(), message.key()
            assigned = self._partitions.get(partition)
            if assigned is None:
                continue  # revoked while the batch was read
            if assigned.read_end is not None and offset < assigned.read_end:
                # The log was truncated, and other messages were written there. Those that we read are gone.
                self.revoke([partition])
                self.assign(partition, -1, None)
                assigned = self._partitions[partition]
            if assigned.record_read(offset):
                group = (partition, offset if key is None else key)
                self._ready.append(_ReadMessage(assigned, message, offset, group))

    def take(self, limit: int, now: float) -> list[Delivery]:
        """Up to ``limit`` deliveries, as far as the prefetch allows. Nacked messages that are due come first."""
        deliveries: list[Delivery] = []
        limit = min(limit, self._prefetch - self._delivered_count())
        while len(deliveries) < limit and self._due and self._due[0][0] <= now:
            group = heapq.heappop(self._due)[2]
            messages = self._delayed.get(group)
            if not messages or messages[0].due > now:
                continue  # revoked, or another message was nacked that comes before the one that was due
            deliveries.append(self._deliver(messages.pop(0)))
            if messages:
                self._schedule(group, messages[0].due)
            else:
                del self._delayed[group]
        while len(deliveries) < limit and self._ready:
            read = self._ready.popleft()
            if read.group in self._delayed:  # it waits behind a nacked one
                insort(self._delayed[read.group], read, key=attrgetter("offset"))
            else:
                deliveries.append(self._deliver(read))
        return deliveries

    def _delivered_count(self) -> int:
        return sum(assigned.delivered_count for assigned in self._partitions.values())

    def _deliver(self, read: _ReadMessage) -> Delivery:
        message = read.message
        packet = read_packet(message.key(), message.value(), message.headers())
        offset = f"{self._queue}:{message.partition()}:{read.offset}"
        delivery = Delivery(packet=packet, queue=self._queue, handle=read, offset=offset)
        read.partition.deliver(read.offset, delivery)
        return delivery

    def next_due(self) -> float | None:
        """The time from which `take` returns more, even if nothing is added or settled until then; None: never."""
        return self._due[0][0] if self._due and self._delivered_count() < self._prefetch else None

    def _schedule(self, group: OrderingGroup, due: float) -> None:
        heapq.heappush(self._due, (due, next(self._tie_breaker), group))

    # -- settling

    def owns(self, delivery: Delivery) -> bool:
        read: _ReadMessage = delivery.handle
        return read.partition.owns(read.offset, delivery)

    def ack(self, delivery: Delivery) -> bool:
        if not self.owns(delivery):
            return False
        read: _ReadMessage = delivery.handle
        read.partition.settle(read.offset)
        return True

    def nack(self, delivery: Delivery, due: float) -> bool:
        if not self.owns(delivery):
            return False
        read: _ReadMessage = delivery.handle
        read.partition.take_back(read.offset)
        redelivery = _ReadMessage(read.partition, read.message, read.offset, read.group, due)
        insort(self._delayed.setdefault(read.group, []), redelivery, key=attrgetter("offset"))
        self._schedule(read.group, due)
        return True

    # -- committing

    def due_commits(self) -> list[Commit]:
        """A commit for each partition whose progress is not committed."""
        return _due_commits(self._partitions.values())

    def set_committed(self, commits: Iterable[Commit]) -> None:
        """Record that the cluster has confirmed ``commits``."""
        for commit in commits:
            if commit.partition in self._partitions:
                self._partitions[commit.partition].committed = commit


def _due_commits(partitions: Iterable[AssignedPartition]) -> list[Commit]:
    return [commit for assigned in partitions if (commit := assigned.due_commit()) is not None]
