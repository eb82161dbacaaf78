"""What a Kafka consumer has of its partitions and has not settled: who gets it next, and how far it may commit.

Kafka keeps one number per partition and group: all before it is done. So that number is the first unsettled offset, and
what is settled beyond it would come again after a rebalance. To avoid that, the commit carries a note
(``eo1 end open open …``): how far the partition was read, and which offsets of that are open. The next owner reads it
and passes over what is settled. A note that is missing, foreign or too long costs redeliveries, never a message.

A nacked message is not sent anywhere: its offset stays open, and it is delivered again from here when its time has
come. Those behind it that have its key wait behind it. Should this process die, they are all read again from Kafka, at
once: a delay does not outlive its consumer, the message does.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import Any, Final

from msgspec import Struct

from effectonce.contracts import Delivery

from .client import packet_of

#: How many messages may wait for their time (nacked, or behind one that was) before no more are read.
MOST_HELD: Final = 1000
#: How many messages are read ahead of those who ask for them, at least.
READ_AHEAD: Final = 500
#: The broker's limit for a note (``offset.metadata.max.bytes``) is 4096.
LONGEST_NOTE: Final = 4000


class Share:
    """One partition, from its assignment to its revocation."""

    def __init__(self, partition: int, offset: int, note: str | None) -> None:
        self.partition = partition
        self.lost = False
        #: Unsettled offsets, in order; with the delivery where it is in somebody's hands.
        self.open: dict[int, Delivery | None] = {}
        #: The offset behind the last message that was read; -1: none was.
        self.end = -1
        self.committed: tuple[int, str] = (offset, note or "")
        self._settled = read_note(offset, note)

    def enter(self, offset: int) -> bool:
        """A message was read. False where a former owner of the partition has settled it."""
        self.end = offset + 1
        end, still_open = self._settled
        if offset < end and offset not in still_open:
            return False
        self.open[offset] = None
        return True

    def progress(self) -> tuple[int, str] | None:
        """What is to be committed: the offset before which all is settled, and the note about what lies beyond it."""
        if self.end < 0:
            return None
        first = next(iter(self.open), self.end)
        return first, write_note(first, self.end, self.open)


def write_note(first: int, end: int, still_open: Iterable[int]) -> str:
    """All from ``first`` to before ``end`` is settled, but for ``still_open``, which begins with ``first``."""
    last = first
    parts: list[str] = []
    length = 24
    for offset in still_open:
        if offset == first:
            continue
        part = str(offset - last)
        length += len(part) + 1
        if length > LONGEST_NOTE:
            end = offset  # of what lies beyond, nothing is said
            break
        parts.append(part)
        last = offset
    settled = end - first - 1 - len(parts)
    return f"eo1 {end - first} {' '.join(parts)}".rstrip() if settled > 0 else ""


def read_note(first: int, note: str | None) -> tuple[int, frozenset[int]]:
    """The end of what the note speaks of, and what of that is open; (``first``, nothing) where it says nothing."""
    version, *numbers = (note or "").split(" ")
    if version != "eo1" or first < 0 or not numbers or not all(number.isdecimal() for number in numbers):
        return first, frozenset()
    end, *steps = map(int, numbers)
    still_open = [first]
    for step in steps:
        still_open.append(still_open[-1] + step)
    return first + end, frozenset(still_open)


class _Item(Struct, eq=False):
    share: Share
    message: Any  # confluent_kafka.Message
    offset: int
    #: What it must stay in order with: its partition and key, or itself alone.
    line: tuple[int, bytes | int]
    due: float = 0.0


class Backlog:
    """Not thread-safe: its owner has the lock."""

    def __init__(self, queue: str, prefetch: int) -> None:
        self._queue = queue
        self._prefetch = prefetch
        self._shares: dict[int, Share] = {}
        self._ready: deque[_Item] = deque()
        self._held: dict[tuple[int, bytes | int], list[_Item]] = {}  # by line, each in order
        self._due: list[tuple[float, int, tuple[int, bytes | int]]] = []  # when to look at a line again
        self._turn = count()
        self._out = 0

    # -- partitions come and go

    def assign(self, partition: int, offset: int, note: str | None) -> None:
        self._shares[partition] = Share(partition, offset, note)

    def revoke(self, partitions: Iterable[int]) -> list[tuple[int, int, str]]:
        """They are another's: what is open of them is forgotten, and what was delivered is stale (F53). What was
        settled of them and not yet committed is returned."""
        leaving = [self._shares[partition] for partition in partitions if partition in self._shares]
        last = list(self._uncommitted(leaving))
        for share in leaving:
            del self._shares[share.partition]
            share.lost = True
            self._out -= sum(delivery is not None for delivery in share.open.values())
        self._ready = deque(item for item in self._ready if not item.share.lost)
        kept = {line: [item for item in items if not item.share.lost] for line, items in self._held.items()}
        self._held = {line: items for line, items in kept.items() if items}
        return last

    def revoke_all(self) -> list[tuple[int, int, str]]:
        return self.revoke(list(self._shares))

    # -- messages

    def room(self) -> int:
        """How many more messages may be read."""
        if sum(map(len, self._held.values())) >= MOST_HELD:
            return 0
        return max(self._prefetch, READ_AHEAD) - len(self._ready)

    def add(self, messages: Iterable[Any]) -> None:
        for message in messages:
            partition, offset, key = message.partition(), message.offset(), message.key()
            share = self._shares.get(partition)
            if share is None:
                continue  # revoked while the batch was read
            if offset < share.end:  # the log was cut off and written anew: what was read of it is no more
                self.revoke([partition])
                self.assign(partition, -1, None)
                share = self._shares[partition]
            if share.enter(offset):
                line = (partition, offset if key is None else key)
                self._ready.append(_Item(share, message, offset, line))

    def take(self, limit: int, now: float) -> list[Delivery]:
        """Up to ``limit`` deliveries, and no more unsettled ones than the prefetch."""
        self._release(now)
        taken: list[Delivery] = []
        ready, held = self._ready, self._held
        limit = min(limit, self._prefetch - self._out)
        while ready and len(taken) < limit:
            item = ready.popleft()
            if item.line in held:
                insort(held[item.line], item, key=_offset)
                continue
            message = item.message
            packet = packet_of(message.key(), message.value(), message.headers())
            delivery = Delivery(packet=packet, queue=self._queue, handle=item)
            item.share.open[item.offset] = delivery
            taken.append(delivery)
        self._out += len(taken)
        return taken

    def next_due(self) -> float | None:
        """When `take` may have more by time alone."""
        return self._due[0][0] if self._due and self._out < self._prefetch else None

    def _release(self, now: float) -> None:
        """What was held back and is due goes to the front, in its order."""
        front: list[_Item] = []
        while self._due and self._due[0][0] <= now:
            line = heapq.heappop(self._due)[2]
            items = self._held.get(line, [])
            ripe = next((at for at, item in enumerate(items) if item.due > now), len(items))
            front += items[:ripe]
            del items[:ripe]
            if items:
                self._look_again(line, items[0].due)
            else:
                self._held.pop(line, None)
        self._ready.extendleft(reversed(front))

    def _look_again(self, line: tuple[int, bytes | int], due: float) -> None:
        heapq.heappush(self._due, (due, next(self._turn), line))

    # -- settling

    def owns(self, delivery: Delivery) -> bool:
        item: _Item = delivery.handle
        return not item.share.lost and item.share.open.get(item.offset) is delivery

    def ack(self, deliveries: Sequence[Delivery]) -> list[bool]:
        return [self.owns(delivery) and self._settle(delivery.handle) for delivery in deliveries]

    def _settle(self, item: _Item) -> bool:
        del item.share.open[item.offset]
        self._out -= 1
        return True

    def nack(self, deliveries: Sequence[Delivery], due: float) -> list[bool]:
        return [self.owns(delivery) and self._hold(delivery.handle, due) for delivery in deliveries]

    def _hold(self, item: _Item, due: float) -> bool:
        item.share.open[item.offset] = None
        self._out -= 1
        again = _Item(item.share, item.message, item.offset, item.line, due)
        insort(self._held.setdefault(item.line, []), again, key=_offset)
        self._look_again(item.line, due)
        return True

    # -- committing

    def uncommitted(self) -> list[tuple[int, int, str]]:
        """(partition, offset, note) for each partition whose progress is not committed."""
        return list(self._uncommitted(self._shares.values()))

    def _uncommitted(self, shares: Iterable[Share]) -> Iterator[tuple[int, int, str]]:
        for share in shares:
            progress = share.progress()
            if progress is not None and progress != share.committed:
                yield share.partition, *progress

    def committed(self, commits: Iterable[tuple[int, int, str]]) -> None:
        for partition, offset, note in commits:
            if partition in self._shares:
                self._shares[partition].committed = (offset, note)


def _offset(item: _Item) -> int:
    return item.offset
