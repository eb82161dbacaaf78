"""RabbitMQ: quorum queues, confirms, single acks on the channel that delivered.

What is unsettled belongs to the channel that delivered it. When that ends, whoever ends it, the broker delivers again,
and a tag of the old channel means nothing on the new one, or worse, something else: it is never sent (F56).

A delayed message waits in a queue ``{queue}.delay.{milliseconds}`` that hands it back when its time is up; it is
published there, confirmed, and only then acked, so that a crash in between doubles it and loses nothing. Dead letters
go to ``{queue}.dead`` the same way.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, get_args

from msgspec import Struct

from effectonce.backends.common.reconnecting import Link
from effectonce.backends.rabbitmq import frames
from effectonce.contracts import BrokerCapabilities, Delivery
from effectonce.errors import BrokerUnavailable, InvalidOption
from effectonce.values.queue_names import require_name
from effectonce.values.urls import Address, flag

from .connection import Channel, Connection, Endpoint, driver
from .dead_letters import RabbitMQDeadLetters
from .packets import ATTEMPTS, LETTER, MAX_BODY, Content, packet_of
from .publisher import RabbitMQPublisher, Sender
from .queues import Queues, QueueType, dead_name, delay_name, step

log = logging.getLogger("effectonce")

ACK_WINDOW: Final = 1800.0


class RabbitMQBackend:
    """``amqp://user:password@host:5672/vhost``, or ``amqps://`` with TLS.

    Options: ``queue_type`` (``quorum``, or ``classic``: plain durable queues as others declare them, which do not count
    attempts and do not confirm what they hand on after a delay), ``declare`` (``no``: the queue is made by others, and
    taken as it is), ``exchange`` (publish there, with the queue's name as routing key; `declare` binds the queue),
    ``ack_window`` (30m: the server's ``consumer_timeout``), ``timeout`` (10 s), ``heartbeat`` (30 s), and for TLS
    ``ca_file``, ``cert_file`` and ``key_file``. A queue has one group of consumers: its name is for people.
    """

    def __init__(self, address: Address) -> None:
        quorum: QueueType = "quorum"
        kind = address.take("queue_type", _queue_type, quorum)
        exchange = address.take("exchange", str, "")
        declares = address.take("declare", flag, True)
        window = address.seconds("ack_window", ACK_WINDOW)
        endpoint = Endpoint(address)
        address.done()
        driver()
        self._queues = Queues(endpoint, kind, exchange, declares)
        self.capabilities = BrokerCapabilities(
            name="rabbitmq",
            ordering="queue",
            ack_window=window,
            counts_attempts=kind == "quorum",
            max_body=MAX_BODY,
        )

    def publisher(self) -> RabbitMQPublisher:
        return RabbitMQPublisher(self._queues)

    def consumer(self, queue: str, *, group: str, prefetch: int) -> RabbitMQConsumer:
        return RabbitMQConsumer(self._queues, require_name(queue), require_name(group, "group"), prefetch)

    def dead_letters(self, queue: str, *, group: str) -> RabbitMQDeadLetters:
        return RabbitMQDeadLetters(self._queues, require_name(queue))

    async def declare(self, queue: str, *, group: str) -> None:
        await self._look(queue, check=False)

    async def check(self, queue: str, *, group: str) -> None:
        await self._look(queue, check=True)

    async def _look(self, queue: str, *, check: bool) -> None:
        connection = await Connection.open(self._queues.endpoint, "effectonce")
        try:
            channel = await connection.channel()
            if check:
                for name in (require_name(queue), dead_name(queue)):
                    await self._queues.require(channel, name)
            # Of a queue that is there, declaring compares the settings and changes nothing.
            await self._queues.declare(channel, require_name(queue))
        finally:
            await connection.close()

    async def close(self) -> None:
        return None

    def __repr__(self) -> str:
        return self._queues.endpoint.shown


def _queue_type(text: str) -> QueueType:
    for kind in get_args(QueueType):
        if text == kind:
            return kind  # type: ignore[no-any-return]
    raise InvalidOption("queue_type is quorum or classic")


class _Handle(Struct, frozen=True):
    stay: _Stay
    tag: int
    header: bytes


class _Stay:
    """One channel that consumes, for as long as it lives: what came on it, and what of that is unsettled."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.arrived: deque[tuple[int, bytes, bytes]] = deque()
        self.unsettled: set[int] = set()
        self._woken: asyncio.Future[None] | None = None
        channel.on_delivery, channel.on_lost = self._delivered, self._lost

    def _delivered(self, tag: int, header: bytes, body: bytes) -> None:
        self.unsettled.add(tag)
        self.arrived.append((tag, header, body))
        self._wake()

    def _lost(self, error: Exception) -> None:
        self.arrived.clear()
        self.unsettled.clear()
        self._wake()

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    async def news(self, deadline: float) -> None:
        """Return when something has come, or the channel is lost, or at ``deadline``."""
        if not self.arrived and self.channel.lost is None:
            loop = asyncio.get_running_loop()
            self._woken = loop.create_future()
            timer = loop.call_at(deadline, self._wake)
            try:
                await self._woken
            finally:
                timer.cancel()


class RabbitMQConsumer:
    """See `contracts.Consumer`."""

    def __init__(self, queues: Queues, queue: str, group: str, prefetch: int) -> None:
        self._queues = queues
        self._queue = queue
        self._group = group
        self._prefetch = max(1, min(prefetch, 65_535))
        self._link = Link(lambda: Connection.open(queues.endpoint, f"effectonce {group}"))
        self._sender = Sender(queues, f"effectonce {group}, delays and dead letters")
        self._stay: _Stay | None = None

    async def _open(self) -> _Stay:
        channel = await (await self._link.connection()).channel()
        commands = channel.commands
        stay = _Stay(channel)
        await self._queues.require(channel, self._queue)
        await channel.call(commands.Basic.Qos(prefetch_count=self._prefetch))
        tag = f"{self._group}-{uuid.uuid4().hex[:12]}"
        await channel.call(commands.Basic.Consume(queue=self._queue, consumer_tag=tag))
        return stay

    async def receive(self, limit: int, wait: float) -> Sequence[Delivery]:
        deadline = asyncio.get_running_loop().time() + wait
        while True:
            if self._stay is None:
                self._stay = await self._open()
            stay = self._stay
            await stay.news(deadline)
            if stay.channel.lost is None:
                arrived = stay.arrived
                return [self._delivery(stay, *arrived.popleft()) for _ in range(min(limit, len(arrived)))]
            self._stay = None
            if stay.channel.connection.lost is not None:
                raise BrokerUnavailable(f"deliveries of {self._queue} stopped: {stay.channel.lost}")
            # The channel alone: an ack came too late, or the queue was moved. What it held is delivered again.
            log.warning("the channel that consumes %s is opened again: %s", self._queue, stay.channel.lost)

    def _delivery(self, stay: _Stay, tag: int, header: bytes, body: bytes) -> Delivery:
        packet, own, notes = packet_of(header, body)
        attempt = 0
        if self._queues.kind == "quorum":
            attempt = 1 + _number(own.get(ATTEMPTS)) + _number(notes.get("x-delivery-count"))
        return Delivery(packet=packet, queue=self._queue, attempt=attempt, handle=_Handle(stay, tag, header))

    # -- settling

    def _mine(self, deliveries: Sequence[Delivery]) -> list[bool]:
        """Whether each is unsettled on the channel that we have now."""
        stay = self._stay
        return [delivery.handle.stay is stay and delivery.handle.tag in stay.unsettled for delivery in deliveries]

    def _settle(self, deliveries: Sequence[Delivery], frame: Any) -> list[bool]:
        """Send ``frame`` for each that is still ours, in one write."""
        mine = self._mine(deliveries)
        stay = self._stay
        if stay is not None:
            number, data = stay.channel.number, []
            for delivery, ours in zip(deliveries, mine, strict=True):
                if ours:
                    stay.unsettled.discard(delivery.handle.tag)
                    data.append(frame(number, delivery.handle.tag))
            stay.channel.write(b"".join(data))
        return mine

    async def ack(self, deliveries: Sequence[Delivery]) -> Sequence[bool]:
        return self._settle(deliveries, frames.ack)

    async def nack(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> Sequence[bool]:
        if delay <= 0:
            return self._settle(deliveries, frames.nack)
        milliseconds = step(delay)
        waiting = delay_name(self._queue, milliseconds)
        answers = self._mine(deliveries)
        mine = [index for index, ours in enumerate(answers) if ours]
        copies = [self._copy(deliveries[index], {ATTEMPTS: str(deliveries[index].attempt)}) for index in mine]
        outcomes = await self._sender.send(
            "", waiting, copies, lambda channel: self._queues.declare_delay(channel, self._queue, milliseconds)
        )
        sent = [index for index, error in zip(mine, outcomes, strict=True) if error is None]
        for index, acked in zip(sent, self._settle([deliveries[index] for index in sent], frames.ack), strict=True):
            answers[index] = acked
        for error in outcomes:
            if error is not None:
                raise error
        return answers

    async def dead_letter(self, delivery: Delivery, headers: Mapping[str, str]) -> bool:
        if not all(self._mine([delivery])):
            return False
        copy = self._copy(delivery, {**headers, LETTER: uuid.uuid4().hex})
        name = dead_name(self._queue)
        (error,) = await self._sender.send(
            "", name, [copy], lambda channel: self._queues.declare_dead(channel, self._queue)
        )
        if error is not None:
            raise error
        return all(self._settle([delivery], frames.ack))

    @staticmethod
    def _copy(delivery: Delivery, added: Mapping[str, str]) -> Content:
        return frames.copied(delivery.handle.header, added), delivery.packet.body

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> Sequence[bool]:
        return self._mine(deliveries)  # the window is the server's setting, and nobody moves it

    async def flush(self) -> None:
        return None  # acks are written at once

    async def close(self) -> None:
        self._stay = None
        await self._link.close()
        await self._sender.close()


def _number(value: Any) -> int:
    """A count that came from outside: whatever is no number is none."""
    text = str(value)
    return int(text) if len(text) < 10 and text.isascii() and text.isdigit() else 0
