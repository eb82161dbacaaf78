"""Publishing to RabbitMQ: a batch is one write, and its confirms are awaited together.

Messages are ``mandatory``: the server returns one that reached no queue, and that is an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import takewhile

from effectonce.backends.common.reconnecting_connection import ReconnectingConnection
from effectonce.backends.rabbitmq import frames
from effectonce.contracts import Packet
from effectonce.errors import BrokerUnavailable, ConfigurationError, show
from effectonce.values.queue_names import require_name

from .channel import RabbitMQChannel
from .connection import RabbitMQConnection
from .packets import Content, content_of
from .queues import MissingRabbitMQQueue, QueueDeclarations, missing_queue


class _PublishBatch:
    """Messages that are being published, and the outcome of each: None where it was confirmed."""

    def __init__(self, contents: Sequence[Content], done: asyncio.Future[None]) -> None:
        self.contents = contents
        self.outcomes: list[Exception | None] = [None] * len(contents)
        self.done = done
        self._unconfirmed = len(contents)
        self._next_returned = 0

    def set_returned(self, content: Content, error: Exception) -> bool:
        """Record that the server returned ``content``. Returns come in the order of publishing. False: it is not in
        this batch."""
        for index in range(self._next_returned, len(self.contents)):
            if self.contents[index] == content:
                self.outcomes[index] = error
                self._next_returned = index + 1
                return True
        return False

    def set_confirmed(self, index: int, error: Exception | None) -> None:
        if error is not None:
            self.outcomes[index] = error
        self._unconfirmed -= 1
        if not self._unconfirmed and not self.done.done():
            self.done.set_result(None)


class ConfirmedPublisher:
    """A channel with publisher confirms, on a connection of its own. Several tasks may publish at once.

    A server that is short of memory stops reading from connections that publish: acks would wait behind them.
    """

    def __init__(self, queues: QueueDeclarations, name: str) -> None:
        self._queues = queues
        self._connection = ReconnectingConnection(lambda: RabbitMQConnection.open(queues.endpoint, name))
        self._opening = asyncio.Lock()
        self._declaring = asyncio.Lock()
        self._channel: RabbitMQChannel | None = None
        self._last_tag = 0
        self._unconfirmed: dict[int, tuple[_PublishBatch, int]] = {}  # by delivery tag: the batch, the place in it

    async def _open(self) -> RabbitMQChannel:
        async with self._opening:
            if self._channel is None or self._channel.lost is not None:
                channel = await (await self._connection.get()).open_channel()
                await channel.call(channel.commands.Confirm.Select())
                self._channel, self._last_tag, self._unconfirmed = channel, 0, {}
                channel.on_confirm = self._handle_confirm
                channel.on_return = self._handle_return
                channel.on_lost = self._handle_loss
            return self._channel

    async def publish(
        self,
        exchange: str,
        routing_key: str,
        contents: Sequence[Content],
        declare: Callable[[RabbitMQChannel], Awaitable[object]] | None = None,
    ) -> list[Exception | None]:
        """Publish all, and return the outcome of each. Raises where the outcome is unknown.

        ``declare`` declares the queue where there is none; returned messages are then published again.
        """
        outcomes = await self._publish(exchange, routing_key, contents)
        returned = [index for index, error in enumerate(outcomes) if isinstance(error, MissingRabbitMQQueue)]
        if returned and declare is not None:
            unrouted = [contents[index] for index in returned]
            async with self._declaring:  # a queue that two declare at once refuses messages for a moment
                retried = await self._publish(exchange, routing_key, unrouted[:1])
                if isinstance(retried[0], MissingRabbitMQQueue):
                    await self._run_on_own_channel(declare)
                    retried = await self._publish(exchange, routing_key, unrouted[:1])
            retried += await self._publish(exchange, routing_key, unrouted[1:])
            for index, outcome in zip(returned, retried, strict=True):
                outcomes[index] = outcome
        return outcomes

    async def _run_on_own_channel(self, declare: Callable[[RabbitMQChannel], Awaitable[object]]) -> None:
        """Run ``declare`` on another channel: a refusal ends the channel, and with it every batch on it."""
        channel = await (await self._connection.get()).open_channel()
        await declare(channel)
        await channel.close()

    async def _publish(self, exchange: str, routing_key: str, contents: Sequence[Content]) -> list[Exception | None]:
        if not contents:
            return []
        channel = await self._open()
        number, frame_max = channel.number, channel.connection.frame_max
        first = frames.publish(number, exchange, routing_key)
        batch = _PublishBatch(contents, asyncio.get_running_loop().create_future())
        data: list[bytes] = []
        for index, (properties, body) in enumerate(contents):
            self._last_tag += 1
            self._unconfirmed[self._last_tag] = (batch, index)
            data += (first, frames.content(number, properties, body, frame_max))
        channel.write(b"".join(data))
        try:
            async with asyncio.timeout(self._queues.endpoint.timeout):
                await channel.connection.drain()
                await batch.done
        except TimeoutError:
            raise channel.connection.fail_unanswered() from None
        return batch.outcomes

    def _handle_confirm(self, last_tag: int, multiple: bool, confirmed: bool) -> None:
        shown = self._queues.endpoint.shown
        error = None if confirmed else BrokerUnavailable(f"{shown} did not take the message; publish it again")
        tags = list(takewhile(lambda tag: tag <= last_tag, self._unconfirmed)) if multiple else [last_tag]
        for tag in tags:
            if tag in self._unconfirmed:
                batch, index = self._unconfirmed.pop(tag)
                batch.set_confirmed(index, error)

    def _handle_return(self, queue: str, header: bytes, body: bytes) -> None:
        error = missing_queue(self._queues.endpoint, queue)
        batches = list(dict.fromkeys(batch for batch, _ in self._unconfirmed.values()))
        if not any(batch.set_returned((header[12:], body), error) for batch in batches):
            # A return has no tag, and the server has changed this message: it may be any of these. None passes for
            # published.
            for batch in batches:
                batch.outcomes = [error] * len(batch.outcomes)

    def _handle_loss(self, error: Exception) -> None:
        unconfirmed, self._unconfirmed = self._unconfirmed, {}
        for batch, _ in unconfirmed.values():
            if not batch.done.done():
                batch.done.set_exception(error)
                batch.done.exception()  # retrieved: its caller may have been cancelled

    async def close(self) -> None:
        await self._connection.close()


class RabbitMQPublisher:
    """See `contracts.Publisher`.

    A missing queue is declared, unless ``exchange`` or ``declare=no`` leaves that to others: then a message that
    reaches no queue is refused.
    """

    def __init__(self, queues: QueueDeclarations) -> None:
        self._queues = queues
        self._publisher = ConfirmedPublisher(queues, "effectonce publisher")

    async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
        outcomes: list[Exception | None] = [None] * len(packets)
        contents: dict[int, Content] = {}
        for index, packet in enumerate(packets):
            try:
                contents[index] = content_of(packet)
            except ValueError as error:
                outcomes[index] = ConfigurationError(f"RabbitMQ cannot take message {show(packet.id)}: {show(error)}")
        queues = self._queues
        declare = None if queues.exchange or not queues.declares else lambda channel: queues.declare(channel, queue)
        published = await self._publisher.publish(
            queues.exchange, require_name(queue), list(contents.values()), declare
        )
        for index, outcome in zip(contents, published, strict=True):
            outcomes[index] = outcome
        return outcomes

    async def close(self) -> None:
        await self._publisher.close()
