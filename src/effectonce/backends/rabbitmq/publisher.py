"""Publishing to RabbitMQ: a batch is one write, and its confirms are awaited together.

Messages are ``mandatory``: the server returns one that reached no queue, and that is an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from effectonce.backends.common.reconnecting_connection import ReconnectingConnection
from effectonce.contracts import Packet
from effectonce.errors import BrokerUnavailable, ConfigurationError, show
from effectonce.values.queue_names import require_name

from . import frames
from .channel import RabbitMQChannel
from .connection import RabbitMQConnection
from .endpoint import RabbitMQEndpoint
from .packets import Content, make_content
from .queues import MissingRabbitMQQueue, QueueDeclarations, delay_queue, delay_step, missing_queue


class _UnconfirmedBatch:
    """Messages that are being published, and the outcome of each: None where it was confirmed."""

    def __init__(self, contents: Sequence[Content], first_tag: int, endpoint: RabbitMQEndpoint) -> None:
        self.outcomes: list[Exception | None] = [None] * len(contents)
        self.done = asyncio.get_running_loop().create_future()
        self._contents = contents
        self._first_tag = first_tag
        self._endpoint = endpoint
        self._unconfirmed = set(range(first_tag, first_tag + len(contents)))
        self._next_returned = 0

    def handle_confirm(self, last_tag: int, multiple: bool, confirmed: bool) -> None:
        tags = {tag for tag in self._unconfirmed if tag <= last_tag} if multiple else self._unconfirmed & {last_tag}
        self._unconfirmed -= tags
        if not confirmed:
            for tag in tags:
                shown = self._endpoint.shown
                error = BrokerUnavailable(f"{shown} rejected the message (nack); publish it again")
                self.outcomes[tag - self._first_tag] = error
        if not self._unconfirmed and not self.done.done():
            self.done.set_result(None)

    def handle_return(self, queue: str, header: bytes, body: bytes) -> None:
        """Handle a message that reached no queue. Returns have no tag, so it is recognised by its content; they arrive
        in the order of publishing."""
        error = missing_queue(self._endpoint, queue)
        for index in range(self._next_returned, len(self._contents)):
            if self._contents[index] == Content(header[frames.PROPERTIES_AT :], body):
                self.outcomes[index] = error
                self._next_returned = index + 1
                return
        # The server has changed this message, so it may be any of them: all count as refused.
        self.outcomes = [error] * len(self.outcomes)

    def handle_loss(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # mark it as retrieved: the caller may have been cancelled


class ConfirmedPublisher:
    """A channel with publisher confirms, for one batch at a time.

    It has a connection of its own: a server that is short of memory stops reading from connections that publish, and
    acks on the same connection would have to wait.
    """

    def __init__(self, queues: QueueDeclarations, purpose: str) -> None:
        self._queues = queues
        self._connection = ReconnectingConnection(lambda: RabbitMQConnection.open(queues.endpoint, purpose))
        self._publishing = asyncio.Lock()
        self._channel: RabbitMQChannel | None = None
        self._last_tag = 0

    async def publish(
        self,
        exchange: str,
        routing_key: str,
        contents: Sequence[Content],
        declare: Callable[[RabbitMQChannel], Awaitable[object]] | None = None,
    ) -> list[Exception | None]:
        """Publish all, and return the outcome of each: None where it was confirmed. Raises where it is unknown.

        Where messages are returned, since there is no queue, ``declare`` declares it and they are published again.
        """
        async with self._publishing:
            outcomes = await self._publish(exchange, routing_key, contents)
            returned = [index for index, error in enumerate(outcomes) if isinstance(error, MissingRabbitMQQueue)]
            if returned and declare is not None:
                await self._run_on_own_channel(declare)
                retried = await self._publish(exchange, routing_key, [contents[index] for index in returned])
                for index, outcome in zip(returned, retried, strict=True):
                    outcomes[index] = outcome
            return outcomes

    async def _run_on_own_channel(self, declare: Callable[[RabbitMQChannel], Awaitable[object]]) -> None:
        """Run ``declare`` on another channel: a refusal ends the channel."""
        connection = await self._connection.get()
        await connection.gate.wait()  # a server that blocks the connection does not read commands either
        channel = await connection.open_channel()
        await declare(channel)
        await channel.close()

    async def _publish(self, exchange: str, routing_key: str, contents: Sequence[Content]) -> list[Exception | None]:
        if not contents:
            return []
        channel = await self._open()
        gate = channel.connection.gate
        batch = _UnconfirmedBatch(contents, self._last_tag + 1, self._queues.endpoint)
        channel.on_confirm, channel.on_return = batch.handle_confirm, batch.handle_return
        channel.on_lost = batch.handle_loss
        self._last_tag += len(contents)
        publish = frames.encode_publish(channel.number, exchange, routing_key)
        data: list[bytes] = []
        for properties, body in contents:
            data += (publish, frames.encode_content(channel.number, properties, body, channel.connection.frame_max))
        try:
            async with asyncio.timeout(self._queues.endpoint.timeout) as gate.unconfirmed:
                channel.connection.write(b"".join(data))
                await channel.connection.drain()
                await batch.done
        except TimeoutError:
            if gate.is_open:
                raise channel.connection.fail_unanswered() from None
            # Keep the connection, which knows that it is blocked: on a new one the caller would publish all again,
            # into a server that is short of memory. Only the channel ends, for its confirms and returns may come late.
            error = gate.error()
            channel.abandon(error)
            raise error from None
        except asyncio.CancelledError:
            # A return may be on its way, and the next batch would take it for one of its own messages.
            channel.connection.fail(BrokerUnavailable("publishing was cancelled before the server had confirmed it"))
            raise
        finally:
            gate.unconfirmed = None
        return batch.outcomes

    async def _open(self) -> RabbitMQChannel:
        """The channel, as soon as the server takes messages."""
        while self._channel is None or self._channel.lost is not None or not self._channel.connection.gate.is_open:
            connection = await self._connection.get()
            await connection.gate.wait()
            if self._channel is None or self._channel.lost is not None:
                self._channel = await connection.open_channel()
                self._last_tag = 0
                await self._channel.call(self._channel.commands.Confirm.Select())
        return self._channel

    async def close(self) -> None:
        await self._connection.close()


class RabbitMQPublisher:
    """See `contracts.Publisher`.

    A missing queue is declared, unless ``exchange`` or ``declare=no`` leaves that to others: then it raises
    `MissingRabbitMQQueue`.
    """

    def __init__(self, queues: QueueDeclarations) -> None:
        self._queues = queues
        self._publisher = ConfirmedPublisher(queues, "publisher")

    async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
        outcomes: list[Exception | None] = [None] * len(packets)
        contents: dict[int, Content] = {}
        for index, packet in enumerate(packets):
            try:
                contents[index] = make_content(packet)
            except ValueError as error:
                outcomes[index] = ConfigurationError(f"RabbitMQ cannot carry message {show(packet.id)}: {show(error)}")
        indexes_by_delay: dict[int, list[int]] = {}
        for index in contents:
            delay_s = packets[index].delay_s
            indexes_by_delay.setdefault(delay_step(delay_s) if delay_s else 0, []).append(index)
        for milliseconds, indexes in indexes_by_delay.items():
            chosen = [contents[index] for index in indexes]
            published = await self._publish(require_name(queue), chosen, milliseconds)
            for index, outcome in zip(indexes, published, strict=True):
                outcomes[index] = outcome
        if contents and all(isinstance(outcomes[index], MissingRabbitMQQueue) for index in contents):
            raise self._queues.unrouted(queue)
        return outcomes

    async def _publish(self, queue: str, contents: Sequence[Content], delay_ms: int) -> Sequence[Exception | None]:
        """Publish to ``queue``, or to the queue in which messages to it wait for ``delay_ms``."""
        queues = self._queues
        if not delay_ms:
            may_declare = queues.declares and not queues.exchange
            declare = (lambda channel: queues.declare(channel, queue)) if may_declare else None
            return await self._publisher.publish(queues.exchange, queue, contents, declare)

        async def declare_both(channel: RabbitMQChannel) -> None:
            await queues.declare(channel, queue)
            await queues.declare_delay(channel, queue, delay_ms)

        return await self._publisher.publish("", delay_queue(queue, delay_ms), contents, declare_both)

    async def close(self) -> None:
        await self._publisher.close()
