"""RabbitMQ: quorum queues, confirms, single acks on the channel that delivered.

An unsettled delivery belongs to the channel that delivered it. When that channel ends, the server delivers the message
again, and a tag of the old channel means nothing on the new one, or worse, another message: it is never sent (F56: an
ack on another channel).

A delayed message waits in a queue ``{queue}.delay.{milliseconds}`` that dead-letters it back when its TTL ends. It is
published there, confirmed, and only then acked, so that a crash in between doubles it and loses nothing. Dead letters
go to ``{queue}.dead`` the same way.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, get_args

from msgspec import Struct

from effectonce.backends.common.reconnecting_connection import ReconnectingConnection
from effectonce.backends.rabbitmq import frames
from effectonce.contracts import BrokerCapabilities, Delivery
from effectonce.errors import BrokerUnavailable, InvalidOption
from effectonce.values.queue_names import require_name
from effectonce.values.urls import Address, flag

from .channel import RabbitMQChannel
from .connection import RabbitMQConnection
from .dead_letters import RabbitMQDeadLetters
from .endpoint import RabbitMQEndpoint, driver
from .packets import ATTEMPTS, DEAD_LETTER_ID, MAX_BODY_BYTES, Content, packet_of
from .publisher import ConfirmedPublisher, RabbitMQPublisher
from .queues import QueueDeclarations, QueueType, dead_letter_queue, delay_queue, delay_step

log = logging.getLogger("effectonce")

DEFAULT_ACK_WINDOW_S: Final = 1800.0  # the server's default consumer_timeout
MAX_PREFETCH: Final = 65_535


class RabbitMQBackend:
    """``amqp://user:password@host:5672/vhost``, or ``amqps://`` with TLS.

    Options: ``queue_type`` (``quorum``, or ``classic``: plain durable queues as other clients declare them, which do
    not count attempts and may lose a message that they pass on after a delay), ``declare`` (``no``: the queue is
    declared by others, and taken as it is), ``exchange`` (publish there, with the queue's name as routing key;
    `declare` binds the queue), ``ack_window`` (30m: the server's ``consumer_timeout``), ``timeout`` (10 s),
    ``heartbeat`` (30 s), and for TLS ``ca_file``, ``cert_file`` and ``key_file``. All consumers of a queue are one
    group; the group's name only appears in the server's list of connections.
    """

    def __init__(self, address: Address) -> None:
        default: QueueType = "quorum"
        queue_type = address.take("queue_type", _parse_queue_type, default)
        exchange = address.take("exchange", str, "")
        declares = address.take("declare", flag, True)
        window = address.seconds("ack_window", DEFAULT_ACK_WINDOW_S)
        endpoint = RabbitMQEndpoint(address)
        address.done()
        driver()
        self._queues = QueueDeclarations(endpoint, queue_type, exchange, declares)
        self.capabilities = BrokerCapabilities(
            name="rabbitmq",
            ordering="queue",
            ack_window=window,
            counts_attempts=queue_type == "quorum",
            max_body=MAX_BODY_BYTES,
        )

    def publisher(self) -> RabbitMQPublisher:
        return RabbitMQPublisher(self._queues)

    def consumer(self, queue: str, *, group: str, prefetch: int) -> RabbitMQConsumer:
        return RabbitMQConsumer(self._queues, require_name(queue), require_name(group, "group"), prefetch)

    def dead_letters(self, queue: str, *, group: str) -> RabbitMQDeadLetters:
        return RabbitMQDeadLetters(self._queues, require_name(queue))

    async def declare(self, queue: str, *, group: str) -> None:
        await self._declare(queue, must_exist=False)

    async def check(self, queue: str, *, group: str) -> None:
        await self._declare(queue, must_exist=True)

    async def _declare(self, queue: str, *, must_exist: bool) -> None:
        connection = await RabbitMQConnection.open(self._queues.endpoint, "effectonce")
        try:
            channel = await connection.open_channel()
            if must_exist:
                for name in (require_name(queue), dead_letter_queue(queue)):
                    await self._queues.count_messages(channel, name)
            # For a queue that exists, declaring compares the settings and changes nothing.
            await self._queues.declare(channel, require_name(queue))
        finally:
            await connection.close()

    async def close(self) -> None:
        return None

    def __repr__(self) -> str:
        return self._queues.endpoint.shown


def _parse_queue_type(text: str) -> QueueType:
    for queue_type in get_args(QueueType):
        if text == queue_type:
            return queue_type  # type: ignore[no-any-return]
    raise InvalidOption("queue_type is quorum or classic")


class _RabbitMQHandle(Struct, frozen=True):
    """The `Delivery.handle`: a tag, which only means something on its own channel, and the message's header."""

    consuming: _ConsumingChannel
    tag: int
    header: bytes


class _ConsumingChannel:
    """One channel that consumes, until it is lost: the messages that arrived on it, and the tags that are unsettled."""

    def __init__(self, channel: RabbitMQChannel) -> None:
        self.channel = channel
        self.arrived: deque[tuple[int, bytes, bytes]] = deque()
        self.unsettled: set[int] = set()
        self._wake_up: asyncio.Future[None] | None = None
        channel.on_delivery = self._handle_delivery
        channel.on_lost = self._handle_loss

    def _handle_delivery(self, tag: int, header: bytes, body: bytes) -> None:
        self.unsettled.add(tag)
        self.arrived.append((tag, header, body))
        self._wake()

    def _handle_loss(self, error: Exception) -> None:
        self.arrived.clear()
        self.unsettled.clear()
        self._wake()

    def _wake(self) -> None:
        if self._wake_up is not None and not self._wake_up.done():
            self._wake_up.set_result(None)

    async def wait_for_arrival(self, deadline: float) -> None:
        """Return when a message has arrived, or the channel is lost, or at ``deadline``."""
        if not self.arrived and self.channel.lost is None:
            loop = asyncio.get_running_loop()
            self._wake_up = loop.create_future()
            timer = loop.call_at(deadline, self._wake)
            try:
                await self._wake_up
            finally:
                timer.cancel()


class RabbitMQConsumer:
    """See `contracts.Consumer`."""

    def __init__(self, queues: QueueDeclarations, queue: str, group: str, prefetch: int) -> None:
        self._queues = queues
        self._queue = queue
        self._group = group
        self._prefetch = max(1, min(prefetch, MAX_PREFETCH))
        self._connection = ReconnectingConnection(
            lambda: RabbitMQConnection.open(queues.endpoint, f"effectonce {group}")
        )
        self._copies = ConfirmedPublisher(queues, f"effectonce {group}, delays and dead letters")
        self._consuming: _ConsumingChannel | None = None

    async def _start_consuming(self) -> _ConsumingChannel:
        channel = await (await self._connection.get()).open_channel()
        commands = channel.commands
        consuming = _ConsumingChannel(channel)
        await self._queues.count_messages(channel, self._queue)
        await channel.call(commands.Basic.Qos(prefetch_count=self._prefetch))
        tag = f"{self._group}-{uuid.uuid4().hex[:12]}"
        await channel.call(commands.Basic.Consume(queue=self._queue, consumer_tag=tag))
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
            # The channel alone: an ack came too late, or the queue was moved. What it held is delivered again.
            log.warning("the channel that consumes %s is opened again: %s", self._queue, consuming.channel.lost)

    def _make_delivery(self, consuming: _ConsumingChannel, tag: int, header: bytes, body: bytes) -> Delivery:
        received = packet_of(header, body)
        attempt = 0
        if self._queues.queue_type == "quorum":
            before_delay = _parse_count(received.own_headers.get(ATTEMPTS))
            attempt = 1 + before_delay + _parse_count(received.server_headers.get("x-delivery-count"))
        handle = _RabbitMQHandle(consuming, tag, header)
        return Delivery(packet=received.packet, queue=self._queue, attempt=attempt, handle=handle)

    # -- settling

    def _owned(self, deliveries: Sequence[Delivery]) -> list[bool]:
        """For each delivery, whether it is unsettled on the channel that consumes now."""
        current = self._consuming
        return [
            delivery.handle.consuming is current and delivery.handle.tag in current.unsettled for delivery in deliveries
        ]

    def _settle(self, deliveries: Sequence[Delivery], make_frame: Callable[[int, int], bytes]) -> list[bool]:
        """Settle every delivery that this consumer still owns, in one write. Returns which ones were owned."""
        owned = self._owned(deliveries)
        current = self._consuming
        if current is not None:
            settled = [delivery.handle.tag for delivery, is_owned in zip(deliveries, owned, strict=True) if is_owned]
            current.unsettled.difference_update(settled)
            current.channel.write(b"".join(make_frame(current.channel.number, tag) for tag in settled))
        return owned

    async def ack(self, deliveries: Sequence[Delivery]) -> Sequence[bool]:
        return self._settle(deliveries, frames.ack)

    async def nack(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> Sequence[bool]:
        if delay <= 0:
            return self._settle(deliveries, frames.nack)
        milliseconds = delay_step(delay)
        answers = self._owned(deliveries)
        owned = [index for index, is_owned in enumerate(answers) if is_owned]
        copies = [self._copy(deliveries[index], {ATTEMPTS: str(deliveries[index].attempt)}) for index in owned]
        outcomes = await self._copies.publish(
            "",
            delay_queue(self._queue, milliseconds),
            copies,
            lambda channel: self._queues.declare_delay(channel, self._queue, milliseconds),
        )
        copied = [index for index, error in zip(owned, outcomes, strict=True) if error is None]
        acked = self._settle([deliveries[index] for index in copied], frames.ack)
        for index, is_acked in zip(copied, acked, strict=True):
            answers[index] = is_acked
        for error in outcomes:
            if error is not None:
                raise error
        return answers

    async def dead_letter(self, delivery: Delivery, headers: Mapping[str, str]) -> bool:
        if not all(self._owned([delivery])):
            return False
        copy = self._copy(delivery, {**headers, DEAD_LETTER_ID: uuid.uuid4().hex})
        (error,) = await self._copies.publish(
            "",
            dead_letter_queue(self._queue),
            [copy],
            lambda channel: self._queues.declare_dead_letters(channel, self._queue),
        )
        if error is not None:
            raise error
        return all(self._settle([delivery], frames.ack))

    @staticmethod
    def _copy(delivery: Delivery, added: Mapping[str, str]) -> Content:
        return frames.copy_properties(delivery.handle.header, added), delivery.packet.body

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> Sequence[bool]:
        return self._owned(deliveries)  # the window is the server's consumer_timeout, which a client cannot move

    async def flush(self) -> None:
        return None  # acks are written at once

    async def close(self) -> None:
        self._consuming = None
        await self._connection.close()
        await self._copies.close()


def _parse_count(value: Any) -> int:
    """A count in a header, which another client may have written: 0 where it is not a number."""
    text = str(value)
    return int(text) if len(text) < 10 and text.isascii() and text.isdigit() else 0
