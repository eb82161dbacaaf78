"""The dead letters of a queue in RabbitMQ.

RabbitMQ shows a message only to a client that takes it from the queue. So a listing takes dead letters and holds them,
unsettled, until it has reached the end or is closed; then they are requeued in their old order. Meanwhile other
listings do not see them. If the process dies, the server requeues them, in any order.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import deque
from collections.abc import Collection, Sequence
from typing import Final

from msgspec.structs import replace

from effectonce.backends.common.reconnecting_connection import ReconnectingConnection
from effectonce.contracts import DeadLetter

from .channel import RabbitMQChannel
from .connection import RabbitMQConnection
from .packets import DEAD_LETTER_ID, read_packet
from .properties import value_as_text
from .queues import QueueDeclarations, dead_letter_queue

#: The most dead letters that are taken in one round trip.
GET_CHUNK: Final = 100
#: How many are requeued before the server is asked whether it has them all again.
REQUEUE_CHUNK: Final = 25
#: The most dead letters that one listing keeps in their order when it requeues them.
MAX_ORDERED: Final = 1000
REQUEUE_TIMEOUT_S: Final = 5.0


class _Listing:
    """The dead letters that one listing holds, and how far it has come. Requeueing them begins the next listing."""

    def __init__(self) -> None:
        self.held: dict[int, DeadLetter] = {}  # by delivery tag, oldest first
        self.unlisted: deque[int] = deque()  # tags of those that no page has shown yet
        self.cursor: str | None = None  # behind which the next page begins; None: no page was shown
        # Whether the last one taken was requeued before, so that more of those may follow (quorum queues).
        self.last_was_requeued = False

    def show_next(self) -> DeadLetter:
        return self.held[self.unlisted.popleft()]

    def forget(self, tags: Collection[int]) -> None:
        """Forget dead letters that were acked."""
        for tag in tags:
            del self.held[tag]
        self.unlisted = deque(tag for tag in self.unlisted if tag in self.held)


class RabbitMQDeadLetters:
    """See `contracts.DeadLetters`. A dead letter that the server itself put there has no id of ours. Its id is a hash
    of its content, so two that are equal share one, and `remove` removes one of them at a time."""

    def __init__(self, queues: QueueDeclarations, queue: str) -> None:
        self._queues = queues
        self._queue = queue
        self._connection = ReconnectingConnection(lambda: RabbitMQConnection.open(queues.endpoint, "dead letters"))
        self._channel: RabbitMQChannel | None = None
        self._listing = _Listing()

    async def browse(self, limit: int, cursor: str | None = None) -> tuple[Sequence[DeadLetter], str | None]:
        channel = await self._open()
        if cursor is None or cursor != self._listing.cursor:
            await self._requeue_held(channel)
            if cursor is not None:
                await self._skip_to(channel, cursor)
        listing = self._listing
        while len(listing.unlisted) <= limit and await self._take(channel, limit + 1 - len(listing.unlisted)):
            pass
        page = [listing.show_next() for _ in range(min(limit, len(listing.unlisted)))]
        if listing.unlisted:
            listing.cursor = page[-1].id
            return page, listing.cursor
        await self._requeue_held(channel)
        return page, None

    async def _skip_to(self, channel: RabbitMQChannel, cursor: str) -> None:
        """Continue behind the dead letter ``cursor``. If it was removed, start again, so that none is left out."""
        while self._listing.unlisted or await self._take(channel, GET_CHUNK):
            if self._listing.show_next().id == cursor:
                return
        await self._requeue_held(channel)

    async def remove(self, ids: Sequence[str]) -> int:
        channel = await self._open()
        wanted = set(ids)
        removed = self._ack_wanted(channel, wanted, list(self._listing.held))
        while wanted and (tags := await self._take(channel, GET_CHUNK)):
            removed += self._ack_wanted(channel, wanted, tags)
        if self._listing.cursor is None:  # else the next page continues with what is held
            await self._requeue_held(channel)
        await self._count_waiting(channel)  # its reply shows that the server has read the acks before it
        return removed

    def _ack_wanted(self, channel: RabbitMQChannel, wanted: set[str], tags: Sequence[int]) -> int:
        acked = []
        for tag in tags:
            dead_letter_id = self._listing.held[tag].id
            if dead_letter_id in wanted:
                wanted.discard(dead_letter_id)
                acked.append(tag)
        channel.ack(acked)
        self._listing.forget(acked)
        return len(acked)

    async def count(self) -> int:
        channel = await self._open()
        return await self._count_waiting(channel) + len(self._listing.held)

    async def close(self) -> None:
        if self._channel is not None and self._channel.lost is None:
            await self._requeue_held(self._channel)
        self._channel = None
        await self._connection.close()

    # -- taking and requeueing

    async def _open(self) -> RabbitMQChannel:
        if self._channel is None or self._channel.lost is not None:
            self._channel = await (await self._connection.get()).open_channel()
            self._listing = _Listing()  # the server has requeued what the lost channel held
            await self._count_waiting(self._channel)
        return self._channel

    async def _count_waiting(self, channel: RabbitMQChannel) -> int:
        return await self._queues.count_messages(channel, dead_letter_queue(self._queue))

    async def _take(self, channel: RabbitMQChannel, count: int) -> list[int]:
        """Take up to ``count`` more dead letters. Returns their tags; [] where the queue is empty."""
        get, listing = channel.commands.Basic.Get(queue=dead_letter_queue(self._queue)), self._listing
        tags = []
        for answer in await channel.call(*[get] * min(count, GET_CHUNK)):
            if isinstance(answer, tuple):  # else Basic.GetEmpty: the queue has no more
                frame, header, body = answer
                listing.held[frame.delivery_tag] = self._make_dead_letter(header, body)
                listing.last_was_requeued = frame.redelivered and self._queues.queue_type == "quorum"
                tags.append(frame.delivery_tag)
        listing.unlisted.extend(tags)
        return tags

    def _make_dead_letter(self, header: bytes, body: bytes) -> DeadLetter:
        received = read_packet(header, body)
        packet = received.packet
        dead_letter_id = received.own_headers.get(DEAD_LETTER_ID)
        if dead_letter_id is None:
            content = repr((packet.id, packet.body, sorted(packet.headers.items())))
            dead_letter_id = hashlib.sha256(content.encode()).hexdigest()[:32]
            deaths = ((name, value) for name, value in received.server_headers.items() if "death" in name)
            cause = {name: value_as_text(value) for name, value in deaths}
            packet = replace(packet, headers={**packet.headers, **cause})
        return DeadLetter(id=dead_letter_id, packet=packet, queue=self._queue)

    async def _requeue_held(self, channel: RabbitMQChannel) -> None:
        """Requeue the dead letters that are held, in their order.

        A quorum queue delivers requeued messages before all others, in the order of requeueing. So if an earlier
        listing has requeued some behind those that we hold, we take these too, up to `MAX_ORDERED`, and requeue all.
        It also mixes up messages when many are requeued at once. So we requeue a few at a time, and wait until the
        queue counts them again.
        """
        listing = self._listing
        while listing.last_was_requeued and len(listing.held) < MAX_ORDERED:
            if not await self._take(channel, GET_CHUNK):
                break
        tags = list(listing.held)
        self._listing = _Listing()
        deadline = time.monotonic() + REQUEUE_TIMEOUT_S
        for start in range(0, len(tags), REQUEUE_CHUNK):
            chunk = tags[start : start + REQUEUE_CHUNK]
            expected = await self._count_waiting(channel) + len(chunk)
            channel.requeue(chunk)
            while await self._count_waiting(channel) < expected and time.monotonic() < deadline:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
