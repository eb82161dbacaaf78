"""Redis Streams (Redis >= 6.2, or Valkey): one stream for a queue, one consumer group for each group.

What a queue's keys are called, with the default namespace: ``eo:{orders}`` is the stream, whose entries have the fields
``body``, ``headers`` (JSON) and ``id``, and ``key`` where there is an ordering key; ``eo:{orders}:delayed:<group>``
holds what was nacked with a delay, ``eo:{orders}:dead:<group>`` the dead letters. What is nacked is added again at the
end, marked with its group, which the other groups pass over. An entry that every group is done with is trimmed (a
stream keeps what it is given): never by length, which would lose what is unsettled, but up to the first entry that
some group has not settled. A group that nobody reads any more keeps all that is published: destroy it (XGROUP DESTROY).

Redis may lose what it has confirmed: a crash between two fsyncs, a failover.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from effectonce.contracts import BrokerCapabilities, Consumer, DeadLetter, DeadLetters, Packet, Publisher
from effectonce.values.urls import Address

from .connection import RedisEndpoint, ReplyError, endpoint_at, load_driver
from .consumer import RedisConsumer
from .stream import TEND, BrokerWire, Keys, fields_of, packet_of, stream_of


class RedisBackend:
    """``redis://host:6379/0`` and ``rediss://`` (TLS).

    Options: ``ack_window`` (30 s): how long an unsettled delivery stays with its consumer; ``namespace`` (``eo``);
    ``timeout`` and ``connect_timeout`` (5 s each); ``ca_file``, ``cert_file`` and ``key_file`` for TLS.
    """

    def __init__(self, address: Address) -> None:
        self.shown = str(address)
        self.window = address.seconds("ack_window", 30.0)
        self.namespace = address.take("namespace", _namespace, "eo")
        self.endpoint = endpoint_at(
            address, secure=address.scheme == "rediss", loses="a whole queue, and its messages would be lost"
        )
        address.done()
        load_driver()
        self.capabilities = BrokerCapabilities(
            name="redis",
            native_delay=True,
            native_dead_letters=True,
            ordering="queue",
            ordered_publish=True,
            ack_window=self.window,
            extends=True,
            counts_attempts=True,
            groups=True,
            batch=256,
        )

    def publisher(self) -> Publisher:
        return RedisPublisher(self.endpoint, self.namespace)

    def consumer(self, queue: str, *, group: str, prefetch: int) -> Consumer:
        return RedisConsumer(self.endpoint, self._keys(queue, group), window=self.window, prefetch=prefetch)

    def dead_letters(self, queue: str, *, group: str) -> DeadLetters:
        return RedisDeadLetters(self.endpoint, self._keys(queue, group))

    def _keys(self, queue: str, group: str) -> Keys:
        return Keys(self.namespace, queue, group)

    async def declare(self, queue: str, *, group: str) -> None:
        wire = BrokerWire(self.endpoint)
        try:
            await wire.declare(self._keys(queue, group))
        finally:
            wire.close()

    async def check(self, queue: str, *, group: str) -> None:
        """The greeting of a connection refuses a server that evicts; a first look needs every command there is."""
        await self.declare(queue, group=group)
        keys = self._keys(queue, group)
        wire = BrokerWire(self.endpoint)
        try:
            await wire.run(TEND, keys.names[:2], [keys.group, "effectonce-check", "3600000", "0", "0-0", "0", "0"])
        finally:
            wire.close()

    async def close(self) -> None:
        return None

    def __repr__(self) -> str:
        return self.shown


def _namespace(text: str) -> str:
    if not text or not text.isprintable() or "{" in text or "}" in text:
        raise ValueError(f"{text!r} is no namespace: printable, and without braces")
    return text


class RedisPublisher:
    """See `contracts.Publisher`. A batch is one transaction: all of it is there, or none."""

    def __init__(self, endpoint: RedisEndpoint, namespace: str) -> None:
        self._namespace = namespace
        self._wire = BrokerWire(endpoint)

    async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
        if not packets:
            return []
        stream = stream_of(self._namespace, queue)
        pack = self._wire.pack
        added = [pack(("XADD", stream, "*", *fields_of(packet))) for packet in packets]
        if len(added) == 1:
            replies = await self._wire.exchange(added[0], 1)
        else:
            commands = b"".join((pack(("MULTI",)), *added, pack(("EXEC",))))
            *queued, done = await self._wire.exchange(commands, len(added) + 2)
            refused = next((each for each in queued if isinstance(each, ReplyError)), None)
            replies = done if isinstance(done, list) else [refused or done] * len(packets)
        return [self._outcome(reply) for reply in replies]

    def _outcome(self, reply: Any) -> Exception | None:
        try:
            self._wire.checked(reply)
        except Exception as error:
            return error
        return None

    async def close(self) -> None:
        self._wire.close()


class RedisDeadLetters:
    """See `contracts.DeadLetters`. Ids and cursors are those of the stream."""

    def __init__(self, endpoint: RedisEndpoint, keys: Keys) -> None:
        self._keys = keys
        self._wire = BrokerWire(endpoint)

    async def browse(self, limit: int, cursor: str | None = None) -> tuple[Sequence[DeadLetter], str | None]:
        start = f"({cursor}" if cursor else "-"
        entries = await self._wire.ask("XRANGE", self._keys.dead, start, "+", "COUNT", limit + 1)
        page = [
            DeadLetter(
                id=id.decode(),
                packet=packet_of(dict(zip(fields[::2], fields[1::2], strict=True))),
                queue=self._keys.queue,
            )
            for id, fields in entries[:limit]
        ]
        return page, page[-1].id if len(entries) > limit else None

    async def remove(self, ids: Sequence[str]) -> int:
        if not ids:
            return 0
        removed: int = await self._wire.ask("XDEL", self._keys.dead, *ids)
        return removed

    async def count(self) -> int:
        length: int = await self._wire.ask("XLEN", self._keys.dead)
        return length

    async def close(self) -> None:
        self._wire.close()
