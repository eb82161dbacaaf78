"""The dead letters of a queue in RabbitMQ.

A queue cannot be looked into without taking from it. A listing takes letters and holds them, unsettled, until it has
come to the end or is closed; then they go back to where they were. Meanwhile others do not see them. Should the process
die, the broker puts them back, in any order.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from effectonce.backends.common.reconnecting import Link
from effectonce.backends.rabbitmq import frames
from effectonce.contracts import DeadLetter

from .connection import Channel, Connection
from .packets import LETTER, packet_of
from .queues import Queues, dead_name

CHUNK: Final = 100
FEW: Final = 25
ORDERED: Final = 1000
SETTLING: Final = 5.0  # s


class RabbitMQDeadLetters:
    """See `contracts.DeadLetters`. Letters that the broker itself put there have no id of ours: theirs is made from
    their content, and of two that are alike one is removed at a time."""

    def __init__(self, queues: Queues, queue: str) -> None:
        self._queues = queues
        self._queue = queue
        self._link = Link(lambda: Connection.open(queues.endpoint, "effectonce dead letters"))
        self._channel: Channel | None = None
        self._held: dict[int, DeadLetter] = {}  # by tag, oldest first
        self._unlisted: deque[int] = deque()
        self._cursor: str | None = None  # of the listing that is under way
        self._again = False  # the last that was taken had been given back before

    async def browse(self, limit: int, cursor: str | None = None) -> tuple[Sequence[DeadLetter], str | None]:
        channel = await self._open()
        if cursor is None or cursor != self._cursor:
            await self._release(channel)
            if cursor is not None:
                await self._skip(channel, cursor)
        while len(self._unlisted) <= limit and await self._take(channel, limit + 1 - len(self._unlisted)):
            pass
        page = [self._held[self._unlisted.popleft()] for _ in range(min(limit, len(self._unlisted)))]
        if self._unlisted:
            self._cursor = page[-1].id
            return page, self._cursor
        await self._release(channel)
        return page, None

    async def _skip(self, channel: Channel, cursor: str) -> None:
        """Go on behind the letter of another's listing. Where it is gone, from the start: nothing stays unseen."""
        while self._unlisted or await self._take(channel, CHUNK):
            if self._held[self._unlisted.popleft()].id == cursor:
                return
        await self._release(channel)

    async def remove(self, ids: Sequence[str]) -> int:
        channel = await self._open()
        wanted = set(ids)
        removed = self._remove(channel, wanted, list(self._held))
        while wanted and (taken := await self._take(channel, CHUNK)):
            removed += self._remove(channel, wanted, taken)
        if self._cursor is None:
            await self._release(channel)
        await self._waiting(channel)  # answered when the acks before it have been read
        return removed

    def _remove(self, channel: Channel, wanted: set[str], tags: Sequence[int]) -> int:
        found = []
        for tag in tags:
            id = self._held[tag].id
            if id in wanted:
                wanted.discard(id)
                found.append(tag)
                del self._held[tag]
        channel.write(b"".join(frames.ack(channel.number, tag) for tag in found))
        if found:
            self._unlisted = deque(tag for tag in self._unlisted if tag in self._held)
        return len(found)

    async def count(self) -> int:
        channel = await self._open()
        return await self._waiting(channel) + len(self._held)

    async def close(self) -> None:
        if self._channel is not None and self._channel.lost is None:
            await self._release(self._channel)
        self._channel = None
        await self._link.close()

    # -- taking and giving back

    async def _open(self) -> Channel:
        if self._channel is None or self._channel.lost is not None:
            self._channel = await (await self._link.connection()).channel()
            self._held, self._unlisted, self._cursor, self._again = {}, deque(), None, False
            await self._waiting(self._channel)
        return self._channel

    async def _waiting(self, channel: Channel) -> int:
        return await self._queues.require(channel, dead_name(self._queue))

    async def _take(self, channel: Channel, count: int) -> list[int]:
        """Up to ``count`` more; none where there are none."""
        get = channel.commands.Basic.Get(queue=dead_name(self._queue))
        taken = []
        for answer in await channel.call(*[get] * min(count, CHUNK)):
            if isinstance(answer, tuple):
                frame, header, body = answer
                self._held[frame.delivery_tag] = self._letter(header, body)
                self._again = frame.redelivered and self._queues.kind == "quorum"
                taken.append(frame.delivery_tag)
        self._unlisted.extend(taken)
        return taken

    def _letter(self, header: bytes, body: bytes) -> DeadLetter:
        packet, own, notes = packet_of(header, body)
        id = own.get(LETTER)
        if id is None:
            alike = repr((packet.id, packet.body, sorted(packet.headers.items())))
            id = hashlib.sha256(alike.encode()).hexdigest()[:32]
            why = {name: frames.text(value) for name, value in notes.items() if "death" in name}
            packet = replace(packet, headers={**packet.headers, **why})
        return DeadLetter(id=id, packet=packet, queue=self._queue)

    async def _release(self, channel: Channel) -> None:
        """Put back what is held, in its order.

        A quorum queue delivers what was given back before all else, first come, first served; so those that were
        listed before are taken too, up to a thousand, and given back behind these. And it mixes up what is given back
        while many are on their way: it gets a few at a time, and has settled them when it counts them again.
        """
        while self._again and len(self._held) < ORDERED and await self._take(channel, CHUNK):
            pass
        tags = list(self._held)
        self._held, self._unlisted, self._cursor, self._again = {}, deque(), None, False
        deadline = time.monotonic() + SETTLING
        for start in range(0, len(tags), FEW):
            few = tags[start : start + FEW]
            settled = await self._waiting(channel) + len(few)
            channel.write(b"".join(frames.nack(channel.number, tag) for tag in few))
            while await self._waiting(channel) < settled and time.monotonic() < deadline:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
