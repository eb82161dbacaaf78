"""Queues in this process: for tests, for programs of one process, and as the model of what a broker does.

A delivered message stays in its queue, invisible until its ack window ends; only its last delivery can settle it. Only
the oldest message of an ordering key is ever visible.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from effectonce.backends.common.visibility_timeout import HeldDelivery, UnsettledDeliveries
from effectonce.contracts import (
    BrokerBackend,
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

#: How often a consumer looks at a clock that a test moves.
MANUAL_CLOCK_POLL_S: Final = 0.005


class _QueuedMessage(Struct):
    packet: Packet
    visible_at: int  # from then on it may be delivered
    attempts: int = 0
    delivery: HeldDelivery | None = None  # the last one; None: never delivered, or given back


class GroupQueue:
    """The messages of a queue that one group of consumers has not settled, by number, and the group's dead letters."""

    def __init__(self) -> None:
        self.messages: dict[int, _QueuedMessage] = {}
        self.numbers_by_key: dict[str, deque[int]] = {}  # by ordering key, in order; the first is the visible one
        # A heap of (visible_at, number). An entry counts only while its message has the same visible_at: entries of a
        # message that was settled, or whose visible_at has changed, are skipped.
        self.schedule: list[tuple[int, int]] = []
        self.dead_letters: dict[int, Packet] = {}

    def add(self, number: int, packet: Packet, visible_at: int) -> None:
        self.messages[number] = _QueuedMessage(packet, visible_at)
        if packet.ordering_key is not None:
            numbers = self.numbers_by_key.setdefault(packet.ordering_key, deque())
            numbers.append(number)
            if numbers[0] != number:
                return
        heapq.heappush(self.schedule, (visible_at, number))

    def take(self, limit: int, now: int, until: int) -> list[tuple[_QueuedMessage, HeldDelivery]]:
        """Deliver up to ``limit`` visible messages, and make them invisible until ``until``."""
        deliveries: list[tuple[_QueuedMessage, HeldDelivery]] = []
        while len(deliveries) < limit and self.schedule and self.schedule[0][0] <= now:
            visible_at, number = heapq.heappop(self.schedule)
            message = self.messages.get(number)
            if message is not None and message.visible_at == visible_at:
                message.attempts += 1
                message.delivery = HeldDelivery(number, until)
                self.make_visible_at(number, until)
                deliveries.append((message, message.delivery))
        return deliveries

    def make_visible_at(self, number: int, visible_at: int) -> None:
        self.messages[number].visible_at = visible_at
        heapq.heappush(self.schedule, (visible_at, number))
        if len(self.schedule) > 100 + 2 * len(self.messages):  # most entries no longer count: rebuild the heap
            numbers = {number for _, number in self.schedule if number in self.messages}
            self.schedule = [(self.messages[number].visible_at, number) for number in numbers]
            heapq.heapify(self.schedule)

    def give_back(self, number: int, visible_at: int) -> None:
        self.messages[number].delivery = None
        self.make_visible_at(number, visible_at)

    def remove(self, number: int, now: int) -> Packet:
        """Remove a settled message. The next one of its ordering key becomes visible."""
        packet = self.messages.pop(number).packet
        if packet.ordering_key is not None:
            numbers = self.numbers_by_key[packet.ordering_key]
            numbers.popleft()
            if numbers:
                self.make_visible_at(numbers[0], now)
            else:
                del self.numbers_by_key[packet.ordering_key]
        return packet


class _MemoryQueue:
    """A queue, with a `GroupQueue` for each of its groups."""

    def __init__(self) -> None:
        self.groups: dict[str, GroupQueue] = {}
        #: Number, packet and `_QueuedMessage.visible_at` of what was published before there was a group: the first
        #: group gets them.
        self.early: list[tuple[int, Packet, int]] = []


class MemoryQueues:
    """The queues of all brokers of one name, and the one lock for them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.by_name: dict[str, _MemoryQueue] = {}
        self.last_number = 0
        self.waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    def queue(self, name: str) -> _MemoryQueue:
        return self.by_name.setdefault(name, _MemoryQueue())

    def group(self, queue: str, group: str) -> GroupQueue:
        groups, early = self.queue(queue).groups, self.queue(queue).early
        if group not in groups:
            groups[group] = GroupQueue()
            for published in early:
                groups[group].add(*published)
            early.clear()
        return groups[group]

    def wake_consumers(self) -> None:
        """Wake every waiting consumer. Call this under the lock; any thread may do so."""
        for loop, event in self.waiting:
            with suppress(RuntimeError):  # a loop that has ended
                loop.call_soon_threadsafe(event.set)


_named_queues: dict[str, MemoryQueues] = {}
_named_queues_lock = threading.Lock()


class MemoryBrokerBackend(BrokerBackend):
    """``memory://`` for queues of its own, ``memory://name`` for those that all brokers of this name in the process
    share.

    ``ack_window`` (30 s): how long an unsettled delivery stays with its consumer.
    """

    def __init__(self, address: Address | None = None, *, clock: Clock | None = None, ack_window: float = 30.0) -> None:
        name = ""
        if address is not None:
            ack_window = address.seconds("ack_window", ack_window)
            address.refuse_unknown_options()
            name = address.netloc
            if address.path not in ("", "/"):
                raise InvalidOption(f"memory:// has a name and no path, as in memory://shop; got {address}")
        self.clock: Clock = clock if clock is not None else SystemClock()
        self.window_us = round(ack_window * 1e6)
        self.shown = f"memory://{name}"
        with _named_queues_lock:
            self.queues = _named_queues.setdefault(name, MemoryQueues()) if name else MemoryQueues()
        self.capabilities = BrokerCapabilities(
            name="memory",
            ordering="key",
            ordered_publish=True,
            ack_window_s=ack_window,
            extends=True,
            counts_attempts=True,
            groups=True,
            max_delay_s=None,
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
        with self.queues.lock:
            self.queues.group(require_name(queue), require_name(group, "group"))

    def after_fork(self) -> None:
        """Reset a forked child: a thread of the parent may hold the lock, and the waiting loops are the parent's."""
        self.queues.lock = threading.Lock()
        self.queues.waiting.clear()

    def __repr__(self) -> str:
        return self.shown


class MemoryPublisher(Publisher):
    """See `contracts.Publisher`."""

    def __init__(self, backend: MemoryBrokerBackend) -> None:
        self._backend = backend

    async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
        require_name(queue)
        queues = self._backend.queues
        with queues.lock:
            now, target = self._backend.clock.now(), queues.queue(queue)
            for packet in packets:
                queues.last_number += 1
                visible_at = now + round(packet.delay_s * 1e6)
                if not target.groups:
                    target.early.append((queues.last_number, packet, visible_at))
                for group in target.groups.values():
                    group.add(queues.last_number, packet, visible_at)
            queues.wake_consumers()
        return [None] * len(packets)


class MemoryConsumer(Consumer):
    """See `contracts.Consumer`. A delivery is this consumer's while its handle is the last one of its message."""

    def __init__(self, backend: MemoryBrokerBackend, queue: str, group: str, prefetch: int) -> None:
        self._backend = backend
        self._queues = backend.queues
        self._clock = backend.clock
        self._queue = queue
        self._group = group
        self._unsettled: UnsettledDeliveries[HeldDelivery] = UnsettledDeliveries(prefetch, backend.clock.now)

    async def receive(self, limit: int, wait: float) -> Sequence[Delivery]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        wake_up = asyncio.Event()
        while True:
            with self._queues.lock:
                deliveries, pause = self._take(limit)
                seconds_left = deadline - loop.time()
                if deliveries or seconds_left <= 0:
                    return deliveries
                self._queues.waiting.add((loop, wake_up))
            try:
                with suppress(TimeoutError):
                    await asyncio.wait_for(wake_up.wait(), min(seconds_left, pause))
            finally:
                with self._queues.lock:
                    self._queues.waiting.discard((loop, wake_up))
            wake_up.clear()

    def _take(self, limit: int) -> tuple[list[Delivery], float]:
        """Take the deliveries that are visible now. Returns them, and for how many seconds no other message becomes
        visible by the passing of time."""
        now = self._clock.now()
        group = self._queues.group(self._queue, self._group)
        room = min(limit, self._unsettled.room())
        deliveries = []
        for message, held in group.take(room, now, now + self._backend.window_us):
            self._unsettled.add(held)
            attempt = message.attempts
            deliveries.append(Delivery(packet=message.packet, queue=self._queue, attempt=attempt, handle=held))
        if self._clock.manual:
            return deliveries, MANUAL_CLOCK_POLL_S
        if room <= 0 or not group.schedule:
            return deliveries, 3600.0
        return deliveries, max((group.schedule[0][0] - now) / 1e6, 0.001)

    def _settle(
        self, held: Sequence[HeldDelivery], settle: Callable[[GroupQueue, HeldDelivery, int], object]
    ) -> list[bool]:
        """Apply ``settle`` to every delivery that is still this consumer's. Returns which ones were."""
        answers = []
        with self._queues.lock:
            now = self._clock.now()
            group = self._queues.group(self._queue, self._group)
            for delivery in held:
                self._unsettled.release(delivery)
                message = group.messages.get(delivery.key)
                is_owned = message is not None and message.delivery is delivery
                if is_owned:
                    settle(group, delivery, now)
                answers.append(is_owned)
            self._queues.wake_consumers()
        return answers

    async def ack(self, deliveries: Sequence[Delivery]) -> Sequence[bool]:
        return self._settle(_handles(deliveries), lambda group, held, now: group.remove(held.key, now))

    async def nack(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> Sequence[bool]:
        delay_us = round(delay * 1e6)
        return self._settle(_handles(deliveries), lambda group, held, now: group.give_back(held.key, now + delay_us))

    async def dead_letter(self, delivery: Delivery, headers: Mapping[str, str]) -> bool:
        def move(group: GroupQueue, held: HeldDelivery, now: int) -> None:
            packet = group.remove(held.key, now)
            group.dead_letters[held.key] = replace(packet, headers={**packet.headers, **headers})

        (answer,) = self._settle([delivery.handle], move)
        return answer

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> Sequence[bool]:
        def keep(group: GroupQueue, held: HeldDelivery, now: int) -> None:
            held.ends_at = now + round(seconds * 1e6)
            self._unsettled.add(held)
            group.make_visible_at(held.key, held.ends_at)

        return self._settle(_handles(deliveries), keep)

    async def close(self) -> None:
        self._settle(list(self._unsettled), lambda group, held, now: group.give_back(held.key, now))


def _handles(deliveries: Sequence[Delivery]) -> list[HeldDelivery]:
    return [delivery.handle for delivery in deliveries]


class MemoryDeadLetters(DeadLetters):
    """See `contracts.DeadLetters`. Ids grow, so the cursor is the last id of a page."""

    def __init__(self, backend: MemoryBrokerBackend, queue: str, group: str) -> None:
        self._backend = backend
        self._queue = queue
        self._group = group

    def _dead_letters(self) -> dict[int, Packet]:
        return self._backend.queues.group(self._queue, self._group).dead_letters

    async def browse(self, limit: int, cursor: str | None = None) -> tuple[Sequence[DeadLetter], str | None]:
        after = int(cursor) if cursor else 0
        with self._backend.queues.lock:
            packets = self._dead_letters()
            numbers = sorted(number for number in packets if number > after)
            page = [DeadLetter(id=str(n), packet=packets[n], queue=self._queue) for n in numbers[:limit]]
        return page, page[-1].id if len(numbers) > limit else None

    async def remove(self, ids: Sequence[str]) -> int:
        with self._backend.queues.lock:
            packets = self._dead_letters()
            return sum(packets.pop(int(id), None) is not None for id in dict.fromkeys(ids) if id.isdigit())

    async def count(self) -> int:
        with self._backend.queues.lock:
            return len(self._dead_letters())
