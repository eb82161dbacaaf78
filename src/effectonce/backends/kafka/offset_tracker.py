"""The messages of a Kafka consumer that are not settled: which one is delivered next, and which offset to commit.

Kafka keeps one offset per partition and group: all before it is done. So that is the first unsettled offset, and
messages that are settled beyond it would come again after a rebalance. To avoid that, the commit carries a note in its
metadata (``eo1 end open open …``): how far the partition was read, and which of these offsets are open. The next owner
reads it and skips the settled ones. A note that is missing, foreign or too long costs redeliveries, never a message.

A nacked message stays here: its offset stays open, and it is delivered again when its delay is over. Messages with the
same key wait behind it. If this process dies, they are all read again from Kafka, at once: the delay is lost, the
message is not.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import count, takewhile
from typing import Any, Final

from msgspec import Struct

from effectonce.contracts import Delivery

from .records import packet_of

#: Reading stops while so many messages are delayed (nacked, or behind a nacked one).
MAX_DELAYED: Final = 1000
#: How many messages are read ahead of `take`, at least.
MIN_READ_AHEAD: Final = 500
#: The longest note in a commit; the broker's limit (``offset.metadata.max.bytes``) is 4096.
MAX_NOTE_CHARS: Final = 4000

#: (partition, offset, note): what is committed for one partition.
Commit = tuple[int, int, str]
#: What a message must stay in order with: its partition and its key, or its offset where it has no key.
OrderingGroup = tuple[int, bytes | int]


class AssignedPartition:
    """One partition, from its assignment to its revocation."""

    def __init__(self, partition: int, offset: int, note: str | None) -> None:
        self.partition = partition
        self.revoked = False
        #: Unsettled offsets, in order, each with its delivery where it is delivered.
        self.open: dict[int, Delivery | None] = {}
        #: The offset behind the last message that was read; -1: none was.
        self.end = -1
        self.committed: tuple[int, str] = (offset, note or "")
        self._noted_end, self._noted_open = read_note(offset, note)

    def open_offset(self, offset: int) -> bool:
        """Record that a message was read. False where a former owner of the partition has settled it."""
        self.end = offset + 1
        if offset < self._noted_end and offset not in self._noted_open:
            return False
        self.open[offset] = None
        return True

    def progress(self) -> tuple[int, str] | None:
        """What to commit: the offset before which all is settled, and the note about what lies beyond it. None: nothing
        was read."""
        if self.end < 0:
            return None
        first = next(iter(self.open), self.end)
        return first, write_note(first, self.end, self.open)


def write_note(first: int, end: int, open_offsets: Iterable[int]) -> str:
    """The note that all from ``first`` to before ``end`` is settled, except ``open_offsets``, which begin with
    ``first``. Open offsets are written as distances; '' where nothing beyond ``first`` is settled."""
    previous = first
    distances: list[str] = []
    length = len("eo1 ") + 20  # the end has at most 19 digits
    for offset in open_offsets:
        if offset == first:
            continue
        distance = str(offset - previous)
        length += len(distance) + 1
        if length > MAX_NOTE_CHARS:
            end = offset  # the note ends here; what lies beyond may come again
            break
        distances.append(distance)
        previous = offset
    settled = end - first - 1 - len(distances)
    return f"eo1 {end - first} {' '.join(distances)}".rstrip() if settled > 0 else ""


def read_note(first: int, note: str | None) -> tuple[int, frozenset[int]]:
    """The offset at which the note ends, and the open offsets before it; (``first``, none) without a note of ours."""
    version, *numbers = (note or "").split(" ")
    if version != "eo1" or first < 0 or not numbers or not all(number.isdecimal() for number in numbers):
        return first, frozenset()
    end, *distances = map(int, numbers)
    open_offsets = [first]
    for distance in distances:
        open_offsets.append(open_offsets[-1] + distance)
    return first + end, frozenset(open_offsets)


class _ReadMessage(Struct, eq=False):
    """A message that was read; the `Delivery.handle` once it is delivered."""

    partition: AssignedPartition
    message: Any  # confluent_kafka.Message
    offset: int
    group: OrderingGroup
    due: float = 0.0  # on the monotonic clock: when a nacked message may be delivered again


class OffsetTracker:
    """The messages of one consumer, from when they are read until they are settled. Not thread-safe: its owner has the
    lock."""

    def __init__(self, queue: str, prefetch: int) -> None:
        self._queue = queue
        self._prefetch = prefetch
        self._partitions: dict[int, AssignedPartition] = {}
        self._ready: deque[_ReadMessage] = deque()
        self._delayed: dict[OrderingGroup, list[_ReadMessage]] = {}  # each list in order
        self._due: list[tuple[float, int, OrderingGroup]] = []  # a heap: when the first of a group is due
        self._tie_breaker = count()
        self._delivered = 0

    # -- assignment

    def assign(self, partition: int, offset: int, note: str | None) -> None:
        self._partitions[partition] = AssignedPartition(partition, offset, note)

    def revoke(self, partitions: Iterable[int]) -> list[Commit]:
        """Forget partitions that another consumer gets: what was delivered from them is stale (F53: a commit after a
        rebalance). Returns the commits that are due for them."""
        revoked = [self._partitions[partition] for partition in partitions if partition in self._partitions]
        last_commits = list(self._due_commits(revoked))
        for assigned in revoked:
            del self._partitions[assigned.partition]
            assigned.revoked = True
            self._delivered -= sum(delivery is not None for delivery in assigned.open.values())
        self._ready = deque(read for read in self._ready if not read.partition.revoked)
        for group, messages in list(self._delayed.items()):
            if messages[0].partition.revoked:  # a group is within one partition
                del self._delayed[group]
        return last_commits

    def revoke_all(self) -> list[Commit]:
        return self.revoke(list(self._partitions))

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
            if offset < assigned.end:  # the log was truncated and written anew: what was read of it is gone
                self.revoke([partition])
                self.assign(partition, -1, None)
                assigned = self._partitions[partition]
            if assigned.open_offset(offset):
                group = (partition, offset if key is None else key)
                self._ready.append(_ReadMessage(assigned, message, offset, group))

    def take(self, limit: int, now: float) -> list[Delivery]:
        """Up to ``limit`` deliveries, as far as the prefetch allows."""
        self._move_due_to_front(now)
        taken: list[Delivery] = []
        limit = min(limit, self._prefetch - self._delivered)
        while self._ready and len(taken) < limit:
            read = self._ready.popleft()
            if read.group in self._delayed:  # it waits behind a nacked one
                insort(self._delayed[read.group], read, key=_offset)
                continue
            message = read.message
            packet = packet_of(message.key(), message.value(), message.headers())
            delivery = Delivery(packet=packet, queue=self._queue, handle=read)
            read.partition.open[read.offset] = delivery
            taken.append(delivery)
        self._delivered += len(taken)
        return taken

    def next_due(self) -> float | None:
        """When `take` can return more without anything being added or settled; None: never."""
        return self._due[0][0] if self._due and self._delivered < self._prefetch else None

    def _move_due_to_front(self, now: float) -> None:
        """Move delayed messages that are due to the front of the ready ones, in their order."""
        front: list[_ReadMessage] = []
        while self._due and self._due[0][0] <= now:
            group = heapq.heappop(self._due)[2]
            messages = self._delayed.get(group, [])
            due = list(takewhile(lambda read: read.due <= now, messages))
            front += due
            del messages[: len(due)]
            if messages:
                self._schedule(group, messages[0].due)
            else:
                self._delayed.pop(group, None)
        self._ready.extendleft(reversed(front))

    def _schedule(self, group: OrderingGroup, due: float) -> None:
        heapq.heappush(self._due, (due, next(self._tie_breaker), group))

    # -- settling

    def owns(self, delivery: Delivery) -> bool:
        read: _ReadMessage = delivery.handle
        return not read.partition.revoked and read.partition.open.get(read.offset) is delivery

    def ack(self, delivery: Delivery) -> bool:
        if not self.owns(delivery):
            return False
        read: _ReadMessage = delivery.handle
        del read.partition.open[read.offset]
        self._delivered -= 1
        return True

    def nack(self, delivery: Delivery, due: float) -> bool:
        if not self.owns(delivery):
            return False
        read: _ReadMessage = delivery.handle
        read.partition.open[read.offset] = None
        self._delivered -= 1
        redelivery = _ReadMessage(read.partition, read.message, read.offset, read.group, due)
        insort(self._delayed.setdefault(read.group, []), redelivery, key=_offset)
        self._schedule(read.group, due)
        return True

    # -- committing

    def due_commits(self) -> list[Commit]:
        """A commit for each partition whose progress is not committed."""
        return list(self._due_commits(self._partitions.values()))

    @staticmethod
    def _due_commits(partitions: Iterable[AssignedPartition]) -> Iterator[Commit]:
        for assigned in partitions:
            progress = assigned.progress()
            if progress is not None and progress != assigned.committed:
                yield assigned.partition, *progress

    def set_committed(self, commits: Iterable[Commit]) -> None:
        for partition, offset, note in commits:
            if partition in self._partitions:
                self._partitions[partition].committed = (offset, note)


def _offset(read: _ReadMessage) -> int:
    return read.offset
