"""One consumer of a RabbitMQ queue.

An unsettled delivery belongs to the channel that delivered it. When that channel ends, the server redelivers the
message. On the new channel, a tag of the old one means nothing, or even another message: so it is never sent there
(F56: an ack on another channel).

A delayed message waits in a queue ``{queue}.delay.{milliseconds}``, which dead-letters it back when its TTL ends. A
copy is published there, confirmed, and only then the message is acked, so that a crash in between doubles it and loses
nothing. Dead letters go to ``{queue}.dead`` in the same way.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from msgspec import Struct

from effectonce.backends.common.reconnecting_connection import ReconnectingConnection
from effectonce.contracts import Consumer, Delivery
from effectonce.errors import BrokerUnavailable

from .channel import RabbitMQChannel
from .connection import RabbitMQConnection
from .packets import ATTEMPTS_HEADER, DEAD_LETTER_ID, Content, read_packet
from .properties import copy_properties
from .publisher import ConfirmedPublisher
from .queues import QueueDeclarations, dead_letter_queue, delay_queue, delay_step

log = logging.getLogger("effectonce")

MAX_PREFETCH: Final = 65_535
#: How often the message was delivered before. Since RabbitMQ 4.3 the first leaves out what a consumer gave back.
COUNT_HEADERS: Final = ("x-delivery-count", "x-acquired-count")


class _RabbitMQHandle(Struct, frozen=True):
    """The `Delivery.handle`: a tag, which is valid on its own channel only, and the message's header."""

    consuming: _ConsumingChannel
    tag: int
    header: bytes


class _ConsumingChannel:
    """A channel that consumes, until it is lost: the messages that arrived on it, and the tags that are unsettled."""

    def __init__(self, channel: RabbitMQChannel) -> None:
        self.channel = channel
        self.arrived: deque[tuple[int, bytes, bytes]] = deque()
        self.unsettled: set[int] = set()
        self._wake_up = asyncio.Event()
        channel.on_delivery = self._handle_delivery
        channel.on_lost = self._handle_loss

    def _handle_delivery(self, tag: int, header: bytes, body: bytes) -> None:
        self.unsettled.add(tag)
        self.arrived.append((tag, header, body))
        self._wake_up.set()

    def _handle_loss(self, error: Exception) -> None:
        self.arrived.clear()
        self.unsettled.clear()
        self._wake_up.set()

    async def wait_for_arrival(self, deadline: float) -> None:
        """Wait until a message has arrived, or the channel is lost, or until ``deadline``."""
        if not self.arrived and self.channel.lost is None:
            self._wake_up.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._wake_up.wait()


class RabbitMQConsumer(Consumer):
    """See `contracts.Consumer`."""

    def __init__(self, queues: QueueDeclarations, queue: str, group: str, prefetch: int) -> None:
        self._queues = queues
        self._queue = queue
        self._group = group
        self._prefetch = max(1, min(prefetch, MAX_PREFETCH))
        self._connection = ReconnectingConnection(lambda: RabbitMQConnection.open(queues.endpoint, group))
        self._copies = ConfirmedPublisher(queues, f"{group}, delays and dead letters")
        self._consuming: _ConsumingChannel | None = None

    async def _start_consuming(self) -> _ConsumingChannel:
        channel = await (await self._connection.get()).open_channel()
        basic = channel.commands.Basic
        consuming = _ConsumingChannel(channel)
        await self._queues.count_messages(channel, self._queue)
        await channel.call(basic.Qos(prefetch_count=self._prefetch))
        await channel.call(basic.Consume(queue=self._queue, consumer_tag=f"{self._group}-{uuid.uuid4().hex[:12]}"))
        return consuming

    async def receive(self, limit: int, wait: float) -> Sequence[Delivery]:
        deadline = asyncio.get_running_loop().time() + wait
        while True:
            if self._consuming is None:
                self._consuming = await self._start_consuming()
            consuming = self._consuming
            await consuming.wait_for_arrival(deadline)
            if consuming.channel.lost is None:
                arrived = consuming.arrived
                return [self._make_delivery(consuming, *arrived.popleft()) for _ in range(min(limit, len(arrived)))]
            self._consuming = None
            if consuming.channel.connection.lost is not None:
                raise BrokerUnavailable(f"deliveries of {self._queue} stopped: {consuming.channel.lost}")
            # Only the channel: an ack was too late, or the queue was moved. Its deliveries are redelivered.
            log.warning("reopening the channel that consumes %s: %s", self._queue, consuming.channel.lost)

    def _make_delivery(self, consuming: _ConsumingChannel, tag: int, header: bytes, body: bytes) -> Delivery:
        received = read_packet(header, body)
        attempt = 0
        if self._queues.queue_type == "quorum":
            before_delay = _parse_count(received.own_headers.get(ATTEMPTS_HEADER))
            attempt = 1 + before_delay + max(_parse_count(received.server_headers.get(name)) for name in COUNT_HEADERS)
        handle = _RabbitMQHandle(consuming, tag, header)
        return Delivery(packet=received.packet, queue=self._queue, attempt=attempt, handle=handle)

    # -- settling

    def _are_owned(self, deliveries: Sequence[Delivery]) -> list[bool]:
        """Return for each delivery whether it is unsettled on the channel that consumes now."""
        current = self._consuming
        return [
            delivery.handle.consuming is current and delivery.handle.tag in current.unsettled for delivery in deliveries
        ]

    def _settle(
        self, deliveries: Sequence[Delivery], settle: Callable[[RabbitMQChannel, Sequence[int]], None]
    ) -> list[bool]:
        """Settle every delivery that this consumer still owns, in one write. Returns which ones were owned."""
        owned = self._are_owned(deliveries)
        current = self._consuming
        if current is not None:
            tags = [delivery.handle.tag for delivery, is_owned in zip(deliveries, owned, strict=True) if is_owned]
            current.unsettled.difference_update(tags)
            settle(current.channel, tags)
        return owned

    async def ack(self, deliveries: Sequence[Delivery]) -> Sequence[bool]:
        return self._settle(deliveries, RabbitMQChannel.ack)

    async def nack(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> Sequence[bool]:
        if delay <= 0:
            return self._settle(deliveries, RabbitMQChannel.requeue)
        milliseconds = delay_step(delay)
        return await self._move(
            deliveries,
            delay_queue(self._queue, milliseconds),
            lambda delivery: {ATTEMPTS_HEADER: str(delivery.attempt)},
            lambda channel: self._queues.declare_delay(channel, self._queue, milliseconds),
        )

    async def dead_letter(self, delivery: Delivery, headers: Mapping[str, str]) -> bool:
        (answer,) = await self._move(
            [delivery],
            dead_letter_queue(self._queue),
            lambda _: {**headers, DEAD_LETTER_ID: uuid.uuid4().hex},
            lambda channel: self._queues.declare_dead_letters(channel, self._queue),
        )
        return answer

    async def _move(
        self,
        deliveries: Sequence[Delivery],
        queue: str,
        added_headers: Callable[[Delivery], Mapping[str, str]],
        declare: Callable[[RabbitMQChannel], Awaitable[object]],
    ) -> list[bool]:
        """Publish copies of the deliveries that are still ours to ``queue``, and ack those whose copy was confirmed.
        Returns which ones were acked; raises the error where a copy was refused."""
        owned = [
            delivery for delivery, is_owned in zip(deliveries, self._are_owned(deliveries), strict=True) if is_owned
        ]
        copies = [
            Content(copy_properties(delivery.handle.header, added_headers(delivery)), delivery.packet.body)
            for delivery in owned
        ]
        outcomes = await self._copies.publish("", queue, copies, declare)
        copied = [delivery for delivery, error in zip(owned, outcomes, strict=True) if error is None]
        answers = zip(copied, self._settle(copied, RabbitMQChannel.ack), strict=True)
        acked = {delivery.handle for delivery, is_acked in answers if is_acked}
        for error in outcomes:
            if error is not None:
                raise error
        return [delivery.handle in acked for delivery in deliveries]

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> Sequence[bool]:
        return self._are_owned(deliveries)  # the window is the server's consumer_timeout, which a client cannot change

    async def close(self) -> None:
        self._consuming = None
        await self._connection.close()
        await self._copies.close()


def _parse_count(value: Any) -> int:
    """A count in a header, which another client may have written: 0 where it is not a number."""
    text = str(value)
    return int(text) if len(text) < 10 and text.isascii() and text.isdigit() else 0
