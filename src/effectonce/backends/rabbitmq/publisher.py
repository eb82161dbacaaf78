"""Publishing to RabbitMQ: a batch is one write, its confirms are awaited together, and what reached no queue comes
back (``mandatory``) and is an error."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import takewhile

from effectonce.backends.common.reconnecting import Link
from effectonce.backends.rabbitmq import frames
from effectonce.contracts import Packet
from effectonce.errors import BrokerUnavailable, ConfigurationError, show
from effectonce.values.queue_names import require_name

from .connection import Channel, Connection
from .packets import Content, content_of
from .queues import MissingQueue, Queues, missing


class _Batch:
    """Messages on their way, and what became of each."""

    def __init__(self, contents: Sequence[Content], done: asyncio.Future[None]) -> None:
        self.contents = contents
        self.answers: list[Exception | None] = [None] * len(contents)
        self.done = done
        self._left = len(contents)
        self._returned = 0

    def returned(self, content: Content, why: Exception) -> bool:
        """It came back, which they do in the order in which they were sent. False: it is none of these."""
        for index in range(self._returned, len(self.contents)):
            if self.contents[index] == content:
                self.answers[index] = why
                self._returned = index + 1
                return True
        return False

    def answered(self, index: int, error: Exception | None) -> None:
        if error is not None:
            self.answers[index] = error
        self._left -= 1
        if not self._left and not self.done.done():
            self.done.set_result(None)


class Sender:
    """A channel with confirms, on a connection of its own: where the broker has no memory left it stops reading from
    those who publish, and acks would wait behind it. Several tasks may send at once."""

    def __init__(self, queues: Queues, name: str) -> None:
        self._queues = queues
        self._link = Link(lambda: Connection.open(queues.endpoint, name))
        self._opening = asyncio.Lock()
        self._making = asyncio.Lock()
        self._channel: Channel | None = None
        self._sent = 0
        self._waiting: dict[int, tuple[_Batch, int]] = {}

    async def _open(self) -> Channel:
        async with self._opening:
            if self._channel is None or self._channel.lost is not None:
                channel = await (await self._link.connection()).channel()
                await channel.call(channel.commands.Confirm.Select())
                self._channel, self._sent, self._waiting = channel, 0, {}
                channel.on_confirm, channel.on_return, channel.on_lost = self._confirmed, self._returned, self._lost
            return self._channel

    async def send(
        self,
        exchange: str,
        routing_key: str,
        contents: Sequence[Content],
        make: Callable[[Channel], Awaitable[object]] | None = None,
    ) -> list[Exception | None]:
        """Send all, and wait until the broker has answered for each. Raises where it is not known.

        ``make`` makes the queue, where there is none; what came back is then sent again.
        """
        answers = await self._send(exchange, routing_key, contents)
        homeless = [index for index, error in enumerate(answers) if isinstance(error, MissingQueue)]
        if homeless and make is not None:
            left = [contents[index] for index in homeless]
            async with self._making:  # a queue that two make at once refuses messages for a moment
                again = await self._send(exchange, routing_key, left[:1])
                if isinstance(again[0], MissingQueue):
                    await self._on_own_channel(make)
                    again = await self._send(exchange, routing_key, left[:1])
            again += await self._send(exchange, routing_key, left[1:])
            for index, answer in zip(homeless, again, strict=True):
                answers[index] = answer
        return answers

    async def _on_own_channel(self, make: Callable[[Channel], Awaitable[object]]) -> None:
        """A refusal would end the channel, for all who wait on it."""
        channel = await (await self._link.connection()).channel()
        await make(channel)
        await channel.close()

    async def _send(self, exchange: str, routing_key: str, contents: Sequence[Content]) -> list[Exception | None]:
        if not contents:
            return []
        channel = await self._open()
        number, frame_max = channel.number, channel.connection.frame_max
        first = frames.publish(number, exchange, routing_key)
        batch = _Batch(contents, asyncio.get_running_loop().create_future())
        data: list[bytes] = []
        for index, (properties, body) in enumerate(contents):
            self._sent += 1
            self._waiting[self._sent] = (batch, index)
            data += (first, frames.content(number, properties, body, frame_max))
        channel.write(b"".join(data))
        try:
            async with asyncio.timeout(self._queues.endpoint.timeout):
                await channel.connection.drained()
                await batch.done
        except TimeoutError:
            raise channel.connection.no_answer() from None
        return batch.answers

    def _confirmed(self, tag: int, multiple: bool, fine: bool) -> None:
        error = None if fine else BrokerUnavailable(f"{self._queues.endpoint.shown} did not take the message")
        waiting = self._waiting
        for each in list(takewhile(tag.__ge__, waiting)) if multiple else (tag,):
            found = waiting.pop(each, None)
            if found is not None:
                found[0].answered(found[1], error)

    def _returned(self, queue: str, header: bytes, body: bytes) -> None:
        error = missing(self._queues.endpoint, queue)
        batches = list(dict.fromkeys(batch for batch, _ in self._waiting.values()))
        if not any(batch.returned((header[12:], body), error) for batch in batches):
            # It carries no number, and the broker has changed it: it may be any of these. None may pass for sent.
            for batch in batches:
                batch.answers = [error] * len(batch.answers)

    def _lost(self, error: Exception) -> None:
        waiting, self._waiting = self._waiting, {}
        for batch, _ in waiting.values():
            if not batch.done.done():
                batch.done.set_exception(error)
                batch.done.exception()  # seen: its caller may have been cancelled

    async def close(self) -> None:
        await self._link.close()


class RabbitMQPublisher:
    """See `contracts.Publisher`. A queue that is not there is made, unless ``exchange`` or ``declare=no`` says that
    others see to that: then a message that reaches no queue is refused."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._sender = Sender(queues, "effectonce publisher")

    async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
        answers: list[Exception | None] = [None] * len(packets)
        contents: dict[int, Content] = {}
        for index, packet in enumerate(packets):
            try:
                contents[index] = content_of(packet)
            except ValueError as error:
                answers[index] = ConfigurationError(f"RabbitMQ cannot take message {show(packet.id)}: {show(error)}")
        queues = self._queues
        make = None if queues.exchange or not queues.declares else lambda channel: queues.declare(channel, queue)
        outcomes = await self._sender.send(queues.exchange, require_name(queue), list(contents.values()), make)
        for index, outcome in zip(contents, outcomes, strict=True):
            answers[index] = outcome
        return answers

    async def close(self) -> None:
        await self._sender.close()
