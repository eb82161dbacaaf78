"""Queues of BabelQueue on Redis, in its own layout, so that consumers and producers of its SDKs share them.

- A queue is a list (``orders``). An element is an envelope, byte for byte, or the frame that BabelQueue puts around an
  envelope and the headers beside it.
- Messages that are being processed are in ``orders:processing``, with their deadlines in
  ``orders:processing:deadlines``.
- Dead letters are in ``orders.dlq``, as envelopes with a ``dead_letter`` block.
- The layout has no delay. A message that is nacked with one waits in ``orders:effectonce:delayed``, until a consumer of
  ours puts it back into the queue.

Attempts are counted in the envelope, by the consumer that gives a message back.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from typing import Final

from effectonce.backends.common.drivers import require_driver
from effectonce.backends.common.reconnecting_connection import closing
from effectonce.backends.common.visibility_timeout import HeldDelivery, PollingConsumer, give_back_unsettled
from effectonce.backends.redis.broker_connection import RedisBrokerConnection
from effectonce.backends.redis.connection import Script, Word
from effectonce.backends.redis.endpoint import RedisEndpoint, parse_endpoint
from effectonce.backends.redis.errors import RedisBrokerErrors
from effectonce.contracts import (
    BrokerBackend,
    BrokerCapabilities,
    Consumer,
    DeadLetter,
    DeadLetters,
    Delivery,
    Packet,
    Publisher,
)
from effectonce.values.queue_names import require_name
from effectonce.values.urls import Address

from .list_elements import (
    count_attempt,
    element_id,
    make_dead_letter_element,
    make_element,
    read_dead_letter,
    read_packet,
)

TAKE_SCRIPT = Script("list_take", package="effectonce.babelqueue")
SETTLE_SCRIPT = Script("list_settle", package="effectonce.babelqueue")

#: How many dead letters are read at once.
BROWSE_CHUNK: Final = 100


class RedisBabelQueueBackend(BrokerBackend):
    """``redis+babelqueue://host:6379/0``. Read and write it with the envelope `effectonce.babelqueue.BabelQueue`.

    Options: ``ack_window`` (90 s, as BabelQueue's ``retry_after``); ``timeout`` and ``connect_timeout`` (5 s each); and
    those for TLS: ``tls``, ``ca_file``, ``cert_file``, ``key_file``, ``verify``, ``server_name``.
    """

    def __init__(self, address: Address) -> None:
        self.shown = str(address)
        self.window = address.seconds("ack_window", 90.0)
        self.endpoint = parse_endpoint(address, RedisBrokerErrors)
        address.refuse_unknown_options()
        require_driver("Redis", "redis", "hiredis")
        self.capabilities = BrokerCapabilities(
            name="redis+babelqueue",
            ordering="queue",
            ordered_publish=True,
            ack_window_s=self.window,
            extends=True,
        )

    def publisher(self) -> Publisher:
        return BabelQueueListPublisher(self.endpoint)

    def consumer(self, queue: str, *, group: str, prefetch: int) -> Consumer:
        return BabelQueueListConsumer(self.endpoint, require_name(queue), window=self.window, prefetch=prefetch)

    def dead_letters(self, queue: str, *, group: str) -> DeadLetters:
        return BabelQueueListDeadLetters(self.endpoint, require_name(queue))

    async def declare(self, queue: str, *, group: str) -> None:
        """Only connect: a list exists as soon as it has an element."""
        require_name(queue)
        async with closing(RedisBrokerConnection(self.endpoint)) as connection:
            await connection.call("LLEN", queue)

    def __repr__(self) -> str:
        return self.shown


class BabelQueueListPublisher:
    """See `contracts.Publisher`. A batch is one command: all of it is published, or none."""

    def __init__(self, endpoint: RedisEndpoint) -> None:
        self._connection = RedisBrokerConnection(endpoint)

    async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
        require_name(queue)
        if packets:
            await self._connection.call("RPUSH", queue, *map(make_element, packets))
        return [None] * len(packets)

    async def close(self) -> None:
        await self._connection.close()


class ListReservation(HeldDelivery):
    """A `HeldDelivery` whose key is the token of its reservation, in the list of messages that are being processed."""

    element: bytes


class BabelQueueListConsumer(PollingConsumer[ListReservation]):
    """See `contracts.Consumer`. It polls, since nothing in this layout wakes a consumer."""

    def __init__(self, endpoint: RedisEndpoint, queue: str, *, window: float, prefetch: int) -> None:
        super().__init__(prefetch, window, longest_poll=0.0)
        self._queue = queue
        # The list of messages that are being processed, and the sorted set of their deadlines.
        self._processing_keys = [f"{queue}:processing".encode(), f"{queue}:processing:deadlines".encode()]
        self._delayed = f"{queue}:effectonce:delayed".encode()
        self._connection = RedisBrokerConnection(endpoint)
        self._exchange = asyncio.Lock()  # one command at a time on the connection

    async def _poll_once(self, limit: int, wait: float) -> list[Delivery]:
        keys = [self._queue.encode(), *self._processing_keys, self._delayed]
        ends_at = time.monotonic() + self._window_s
        async with self._exchange:
            reserved = await self._connection.batch(TAKE_SCRIPT, keys, [str(self._window_s), limit, os.urandom(16)])
        return [
            Delivery(packet=read_packet(element), queue=self._queue, handle=ListReservation(token, ends_at, element))
            for token, element in reserved
        ]

    async def ack(self, deliveries: Sequence[Delivery]) -> Sequence[bool]:
        return await self._unsettled.settle(deliveries, lambda held: self._apply("ack", 0, b"", held))

    async def nack(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> Sequence[bool]:
        verb, target = ("delay", self._delayed) if delay > 0 else ("push", self._queue.encode())

        async def send(held: list[ListReservation]) -> list[bool]:
            elements = [count_attempt(reservation.element) for reservation in held]
            return await self._apply(verb, delay, target, held, elements)

        return await self._unsettled.settle(deliveries, send)

    async def dead_letter(self, delivery: Delivery, headers: Mapping[str, str]) -> bool:
        elements = [make_dead_letter_element(delivery.packet, headers, self._queue)]
        target = dead_letter_list(self._queue)
        (answer,) = await self._unsettled.settle(
            [delivery], lambda held: self._apply("push", 0, target, held, elements)
        )
        return answer

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> Sequence[bool]:
        extended = await self._unsettled.extend(deliveries, lambda held: self._apply("extend", seconds, b"", held))
        for delivery, is_ours in zip(deliveries, extended, strict=True):
            if is_ours:
                delivery.handle.ends_at = time.monotonic() + seconds
        return extended

    async def _apply(
        self,
        verb: str,
        seconds: float,
        target: bytes,
        held: Sequence[ListReservation],
        elements: Sequence[bytes] | None = None,
    ) -> list[bool]:
        """Run ``list_settle.lua``, which describes the verbs. ``elements`` are pushed to ``target``, or wait there: one
        for each reservation. Returns which reservations were still ours."""
        if not held:
            return []
        args: list[Word] = [verb, str(seconds)]
        for reservation, element in zip(held, elements or [b""] * len(held), strict=True):
            args += [reservation.key, reservation.element, element]
        async with self._exchange:
            answers = await self._connection.batch(SETTLE_SCRIPT, [*self._processing_keys, target], args)
        return [answer == 1 for answer in answers]

    async def close(self) -> None:
        held = await self._stop_polling()
        elements = [reservation.element for reservation in held]  # unchanged: this was not an attempt
        try:
            await give_back_unsettled(lambda: self._apply("push", 0, self._queue.encode(), held, elements))
        finally:
            await self._connection.close()


def dead_letter_list(queue: str) -> bytes:
    return f"{queue}.dlq".encode()


class BabelQueueListDeadLetters:
    """See `contracts.DeadLetters`. A cursor is the index of the next element, and the id of the element before it. If
    that element was removed meanwhile, the next page starts again with the oldest dead letter."""

    def __init__(self, endpoint: RedisEndpoint, queue: str) -> None:
        self._queue = queue
        self._list = dead_letter_list(queue)
        self._connection = RedisBrokerConnection(endpoint)

    async def browse(self, limit: int, cursor: str | None = None) -> tuple[Sequence[DeadLetter], str | None]:
        start = await self._find_next(cursor) if cursor else 0
        elements = await self._connection.call("LRANGE", self._list, start, start + limit)
        page = [read_dead_letter(element, self._queue) for element in elements[:limit]]
        return page, f"{start + limit}:{page[-1].id}" if len(elements) > limit else None

    async def _find_next(self, cursor: str) -> int:
        """The index behind the element that ``cursor`` names. It is searched backwards: elements are added at the end
        and removed anywhere, so it can only have moved towards the start."""
        index, _, id = cursor.partition(":")
        end = int(index)
        while end > 0:
            start = max(end - BROWSE_CHUNK, 0)
            elements: list[bytes] = await self._connection.call("LRANGE", self._list, start, end - 1)
            for n in range(len(elements), 0, -1):
                if element_id(elements[n - 1]) == id:
                    return start + n
            end = start
        return 0

    async def remove(self, ids: Sequence[str]) -> int:
        wanted_elements: list[bytes] = []
        wanted, start = set(ids), 0
        while wanted:
            elements = await self._connection.call("LRANGE", self._list, start, start + BROWSE_CHUNK - 1)
            if not elements:
                break
            for element in elements:
                if (id := element_id(element)) in wanted:
                    wanted.remove(id)
                    wanted_elements.append(element)
            start += BROWSE_CHUNK
        if not wanted_elements:
            return 0
        return sum(await self._connection.exchange(*(("LREM", self._list, 1, element) for element in wanted_elements)))

    async def count(self) -> int:
        return int(await self._connection.call("LLEN", self._list))

    async def close(self) -> None:
        await self._connection.close()
