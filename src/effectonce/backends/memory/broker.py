"""Queues in this process: for tests, single-process programs, and as the model of what a broker does.

What is delivered stays in its queue, invisible until its ack window ends: whoever settles it in time must show the
token that it was delivered with. Of one ordering key only the oldest is ever visible.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from effectonce.contracts import (
    BrokerCapabilities,
    Clock,
    Consumer,
    DeadLetter,
    DeadLetters,
    Delivery,
    Packet,
    Publisher,
)
from effectonce.errors import InvalidOption
from effectonce.values.clocks import SystemClock
from effectonce.values.queue_names import require_name
from effectonce.values.urls import Address

POLL: Final = 0.005  # how often a clock that is moved by hand is looked at


class _Item(Struct):
    packet: Packet
    visible_at: int
    attempts: int = 0
    token: object = None  # of the last delivery; None: never delivered, or given back


class _Group:
    """What one group of consumers has before it."""

    def __init__(self) -> None:
        self.items: dict[int, _Item] = {}
        self.keys: dict[str, deque[int]] = {}  # of each ordering key, its items in order; the first is the visible one
        self.due: list[tuple[int, int]] = []  # (visible_at, number); what no longer agrees with its item is skipped
        self.dead: dict[int, Packet] = {}

    def add(self, number: int, packet: Packet, now: int) -> None:
        self.items[number] = _Item(packet, now)
        key = packet.ordering_key
        if key is not None:
            line = self.keys.setdefault(key, deque())
            line.append(number)
            if line[0] != number:
                return
        heapq.heappush(self.due, (now, number))

    def take(self, limit: int, now: int, until: int) -> list[tuple[int, _Item]]:
        """Up to ``limit`` items that are visible now, and are not again before ``until``."""
        taken: list[tuple[int, _Item]] = []
        while len(taken) < limit and self.due and self.due[0][0] <= now:
            at, number = heapq.heappop(self.due)
            item = self.items.get(number)
            if item is not None and item.visible_at == at:
                item.attempts += 1
                item.token = object()
                self.show(number, until)
                taken.append((number, item))
        return taken

    def show(self, number: int, at: int) -> None:
        self.items[number].visible_at = at
        heapq.heappush(self.due, (at, number))
        if len(self.due) > 100 + 2 * len(self.items):  # most of them are of times that no longer count
            self.due = [(self.items[n].visible_at, n) for n in {n for _, n in self.due} if n in self.items]
            heapq.heapify(self.due)

    def drop(self, number: int, now: int) -> None:
        """It is settled: the next of its ordering key becomes visible."""
        key = self.items.pop(number).packet.ordering_key
        if key is not None:
            line = self.keys[key]
            line.popleft()
            if line:
                self.show(line[0], now)
            else:
                del self.keys[key]


class _Queue:
    def __init__(self) -> None:
        self.groups: dict[str, _Group] = {}
        self.early: list[tuple[int, Packet]] = []  # what came before there was a group


class Room:
    """The queues behind all handles of one name, and their one lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.queues: dict[str, _Queue] = {}
        self.number = 0
        self.waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    def queue(self, name: str) -> _Queue:
        return self.queues.setdefault(name, _Queue())

    def group(self, queue: str, group: str, now: int) -> _Group:
        found = self.queue(queue)
        if group not in found.groups:
            found.groups[group] = made = _Group()
            for number, packet in found.early:
                made.add(number, packet, now)
            found.early.clear()
        return found.groups[group]

    def wake(self) -> None:
        """Let everyone look again. Called under the lock, from any thread."""
        for loop, event in self.waiting:
            with suppress(RuntimeError):  # a loop that has ended
                loop.call_soon_threadsafe(event.set)


_rooms: dict[str, Room] = {}
_rooms_lock = threading.Lock()


class MemoryBrokerBackend:
    """``memory://`` for one handle alone, ``memory://name`` for all handles of that name in this process.

    ``ack_window`` (30 s): how long an unsettled delivery stays with its consumer.
    """

    def __init__(self, address: Address | None = None, *, clock: Clock | None = None, ack_window: float = 30.0) -> None:
        name = ""
        if address is not None:
            ack_window = address.seconds("ack_window", ack_window)
            address.done()
            name = address.netloc
            if address.path not in ("", "/"):
                raise InvalidOption(f"memory:// has a name and no path, as in memory://shop; got {address}")
        self.clock: Clock = clock if clock is not None else SystemClock()
        self.window = round(ack_window * 1e6)
        self.shown = f"memory://{name}"
        with _rooms_lock:
            self.room = _rooms.setdefault(name, Room()) if name else Room()
        self.capabilities = BrokerCapabilities(
            name="memory",
            native_delay=True,
            native_dead_letters=True,
            ordering="key",
            ordered_publish=True,
            ack_window=ack_window,
            extends=True,
            counts_attempts=True,
            groups=True,
            durable=False,
            shared=False,
        )

    def publisher(self) -> Publisher:
        return MemoryPublisher(self)

    def consumer(self, queue: str, *, group: str, prefetch: int) -> Consumer:
        return MemoryConsumer(self, require_name(queue), require_name(group, "group"), prefetch)

    def dead_letters(self, queue: str, *, group: str) -> DeadLetters:
        return MemoryDeadLetters(self, require_name(queue), require_name(group, "group"))

    async def declare(self, queue: str, *, group: str) -> None:
        with self.room.lock:
            self.room.group(require_name(queue), require_name(group, "group"), self.clock.now())

    async def check(self, queue: str, *, group: str) -> None:
        await self.declare(queue, group=group)

    async def close(self) -> None:
        return None

    def after_fork(self) -> None:
        """A thread of the parent may have held the lock, and its loops are not ours to wake."""
        self.room.lock = threading.Lock()
        self.room.waiting.clear()

    def __repr__(self) -> str:
        return self.shown


class MemoryPublisher:
    """See `contracts.Publisher`."""

    def __init__(self, backend: MemoryBrokerBackend) -> None:
        self._backend = backend

    async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
        require_name(queue)
        room = self._backend.room
        with room.lock:
            now = self._backend.clock.now()
            found = room.queue(queue)
            for packet in packets:
                room.number += 1
                if not found.groups:
                    found.early.append((room.number, packet))
                for group in found.groups.values():
                    group.add(room.number, packet, now)
            room.wake()
        return [None] * len(packets)

    async def close(self) -> None:
        return None


class MemoryConsumer:
    """See `contracts.Consumer`."""

    def __init__(self, backend: MemoryBrokerBackend, queue: str, group: str, prefetch: int) -> None:
        self._backend = backend
        self._room = backend.room
        self._clock = backend.clock
        self._queue = queue
        self._group = group
        self._prefetch = prefetch
        self._unsettled: dict[object, int] = {}  # token: when its window ends

    async def receive(self, limit: int, wait: float) -> Sequence[Delivery]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        woken = (loop, asyncio.Event())
        while True:
            with self._room.lock:
                found, pause = self._take(limit)
                left = deadline - loop.time()
                if found or left <= 0:
                    return found
                self._room.waiting.add(woken)
            try:
                with suppress(TimeoutError):
                    await asyncio.wait_for(woken[1].wait(), min(left, pause))
            finally:
                with self._room.lock:
                    self._room.waiting.discard(woken)
            woken[1].clear()

    def _take(self, limit: int) -> tuple[list[Delivery], float]:
        """What there is, and how long to sleep before there may be more by time alone."""
        now = self._clock.now()
        self._unsettled = {token: end for token, end in self._unsettled.items() if end > now}
        limit = min(limit, self._prefetch - len(self._unsettled))
        group = self._room.group(self._queue, self._group, now)
        until = now + self._backend.window
        found = []
        for number, item in group.take(limit, now, until):
            self._unsettled[item.token] = until
            handle = (number, item.token)
            found.append(Delivery(packet=item.packet, queue=self._queue, attempt=item.attempts, handle=handle))
        if self._clock.manual:
            return found, POLL
        return found, max((group.due[0][0] - now) / 1e6, 0.001) if group.due and limit > 0 else 3600.0

    def _settle(self, deliveries: Sequence[Delivery], do: Callable[[_Group, int, _Item, int], Any]) -> list[bool]:
        """``do`` for each that is still ours."""
        answers = []
        with self._room.lock:
            now = self._clock.now()
            group = self._room.group(self._queue, self._group, now)
            for delivery in deliveries:
                number, token = delivery.handle
                item = group.items.get(number)
                mine = item is not None and item.token is token
                if mine:
                    do(group, number, item, now)  # type: ignore[arg-type]
                answers.append(mine)
            self._room.wake()
        return answers

    async def ack(self, deliveries: Sequence[Delivery]) -> Sequence[bool]:
        def acked(group: _Group, number: int, item: _Item, now: int) -> None:
            group.drop(number, now)

        return self._settled(deliveries, self._settle(deliveries, acked))

    async def nack(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> Sequence[bool]:
        def again(group: _Group, number: int, item: _Item, now: int) -> None:
            item.token = None
            group.show(number, now + round(delay * 1e6))

        return self._settled(deliveries, self._settle(deliveries, again))

    async def dead_letter(self, delivery: Delivery, headers: Mapping[str, str]) -> bool:
        def dead(group: _Group, number: int, item: _Item, now: int) -> None:
            group.dead[number] = replace(item.packet, headers={**item.packet.headers, **headers})
            group.drop(number, now)

        (answer,) = self._settled([delivery], self._settle([delivery], dead))
        return answer

    def _settled(self, deliveries: Sequence[Delivery], answers: Sequence[bool]) -> Sequence[bool]:
        for delivery in deliveries:
            self._unsettled.pop(delivery.handle[1], None)
        return answers

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> Sequence[bool]:
        def extended(group: _Group, number: int, item: _Item, now: int) -> None:
            until = now + round(seconds * 1e6)
            self._unsettled[item.token] = until
            group.show(number, until)

        return self._settle(deliveries, extended)

    async def flush(self) -> None:
        return None

    async def close(self) -> None:
        with self._room.lock:
            now = self._clock.now()
            group = self._room.group(self._queue, self._group, now)
            for number, item in group.items.items():
                if item.token in self._unsettled:
                    item.token = None
                    group.show(number, now)
            self._unsettled.clear()
            self._room.wake()


class MemoryDeadLetters:
    """See `contracts.DeadLetters`. Ids grow, so the cursor is the last id of a page."""

    def __init__(self, backend: MemoryBrokerBackend, queue: str, group: str) -> None:
        self._backend = backend
        self._queue = queue
        self._group = group

    def _dead(self) -> dict[int, Packet]:
        return self._backend.room.group(self._queue, self._group, self._backend.clock.now()).dead

    async def browse(self, limit: int, cursor: str | None = None) -> tuple[Sequence[DeadLetter], str | None]:
        after = int(cursor) if cursor else 0
        with self._backend.room.lock:
            dead = self._dead()
            numbers = sorted(number for number in dead if number > after)
            page = [DeadLetter(id=str(n), packet=dead[n], queue=self._queue) for n in numbers[:limit]]
        return page, page[-1].id if len(numbers) > limit else None

    async def remove(self, ids: Sequence[str]) -> int:
        with self._backend.room.lock:
            dead = self._dead()
            return sum(dead.pop(int(each), None) is not None for each in dict.fromkeys(ids) if each.isdigit())

    async def count(self) -> int:
        with self._backend.room.lock:
            return len(self._dead())

    async def close(self) -> None:
        return None
