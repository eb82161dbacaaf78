"""Redis Streams (Redis >= 6.2, or Valkey): one stream for a queue, one consumer group for each group.

The keys of the queue ``orders``, with the default namespace:

- ``eo:{orders}`` is the stream. Its entries have the fields ``body``, ``headers`` (JSON) and ``id``, and ``key`` where
  there is an ordering key.
- ``eo:{orders}:delayed:<group>`` holds messages that were nacked with a delay.
- ``eo:{orders}:scheduled`` holds messages that were published with a delay, for all groups. Any consumer of the queue
  moves them to the stream when they are due.
- ``eo:{orders}:dead:<group>`` holds the dead letters.

A nacked message is added again at the end, marked with its group; other groups skip it. The stream is trimmed up to the
first entry that some group has not settled. (Trimming by length would lose unsettled messages.) So a group without
consumers keeps every message that is published: destroy it (XGROUP DESTROY).

Redis may lose messages that it has confirmed: in a crash between two fsyncs, in a failover.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from effectonce.backends.common.drivers import require_driver
from effectonce.backends.common.reconnecting_connection import closing
from effectonce.contracts import BrokerCapabilities, DeadLetter, DeadLetters, Packet, Publisher
from effectonce.errors import InvalidOption, SyncAsyncMismatch
from effectonce.values.urls import Address

from .broker_connection import open_connection
from .client_connection import read_endpoint
from .consumer import RedisConsumer
from .endpoint import RedisEndpoint, parse_endpoint
from .errors import RedisBrokerErrors, ReplyError
from .stream import StreamKeys, declare_group, make_command, read_packet, stream_key


class RedisBrokerBackend:
    """``redis://host:6379/0``, or ``rediss://`` with TLS; ``valkey://`` and ``valkeys://`` are the same.

    ``unix:///path?db=0`` is a Unix socket, ``redis+cluster://host:7000,host:7001`` a cluster, and
    ``redis+sentinel://host:26379,host:26379/service/0`` the primary that the sentinels name.

    Options: ``ack_window`` (30 s): how long an unsettled delivery stays with its consumer; ``namespace`` (``eo``);
    ``timeout`` and ``connect_timeout`` (5 s each); of a cluster also ``nodes``; of sentinels ``sentinel_user`` and
    ``sentinel_password``; and those for TLS: ``tls``, ``ca_file``, ``cert_file``, ``key_file``, ``verify``,
    ``server_name``.
    """

    def __init__(self, address: Address) -> None:
        window = address.seconds("ack_window", 30.0)
        namespace = address.take("namespace", parse_namespace, "eo")
        endpoint = parse_endpoint(address, RedisBrokerErrors)
        address.refuse_unknown_options()
        self._set_up(endpoint, window, namespace)

    def _set_up(self, endpoint: RedisEndpoint, window: float, namespace: str) -> None:
        require_driver("Redis", "redis", "hiredis")
        self.endpoint, self.window, self.namespace = endpoint, window, namespace
        self.capabilities = BrokerCapabilities(
            name="redis",
            ordering="queue",
            ordered_publish=True,
            ack_window_s=window,
            extends=True,
            counts_attempts=True,
            groups=True,
            max_delay_s=None,
            batch=256,
        )

    def publisher(self) -> Publisher:
        return RedisPublisher(self.endpoint, self.namespace)

    def consumer(self, queue: str, *, group: str, prefetch: int) -> RedisConsumer:
        return RedisConsumer(self.endpoint, self._keys(queue, group), window=self.window, prefetch=prefetch)

    def dead_letters(self, queue: str, *, group: str) -> DeadLetters:
        return RedisDeadLetters(self.endpoint, self._keys(queue, group))

    def _keys(self, queue: str, group: str) -> StreamKeys:
        return StreamKeys(self.namespace, queue, group)

    async def declare(self, queue: str, *, group: str) -> None:
        keys = self._keys(queue, group)
        async with closing(open_connection(self.endpoint).of_queue(keys.stream)) as connection:
            await declare_group(connection, keys)

    async def check(self, queue: str, *, group: str) -> None:
        """Connect, which refuses a server that evicts keys, and maintain the stream once, which uses all our
        commands."""
        await self.declare(queue, group=group)
        async with closing(self.consumer(queue, group=group, prefetch=1)) as consumer:
            await consumer.maintain(0)

    async def close(self) -> None:
        return None

    def __repr__(self) -> str:
        return self.endpoint.shown


class RedisClientBrokerBackend(RedisBrokerBackend):
    """On the server of a client of redis-py or valkey-py: `Redis`, `RedisCluster`, or their asyncio forms.

    Its address, login and TLS are read from the client, and the connections are our own: a consumer blocks on one, and
    an asyncio client belongs to one event loop. `InvalidOption` where the client does not say where its server is.
    """

    def __init__(self, client: Any, window: float, namespace: str) -> None:
        try:
            endpoint = read_endpoint(client)
        except SyncAsyncMismatch as error:
            raise InvalidOption(
                f"{type(client).__name__} does not say where it is connected to, and a broker opens connections of its "
                "own; make the broker from a URL: eo.connect_broker(url)"
            ) from error
        endpoint.error_kind = RedisBrokerErrors
        self._set_up(endpoint, window, parse_namespace(namespace))


def parse_namespace(text: str) -> str:
    if not text or not text.isprintable() or "{" in text or "}" in text:
        raise ValueError(f"{text!r} is not a namespace: use printable text without braces")
    return text


class RedisPublisher:
    """See `contracts.Publisher`. A batch is one transaction: all of it is published, or none."""

    def __init__(self, endpoint: RedisEndpoint, namespace: str) -> None:
        self._namespace = namespace
        self._connection = open_connection(endpoint)

    async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
        if not packets:
            return []
        stream = stream_key(self._namespace, queue)
        exchange = self._connection.of_queue(stream).exchange
        added = [make_command(stream, packet) for packet in packets]
        if len(added) == 1:
            replies = await exchange(*added, check=False)
        else:
            *queued, done = await exchange(("MULTI",), *added, ("EXEC",), check=False)
            refused = next((reply for reply in queued if isinstance(reply, ReplyError)), None)
            replies = done if isinstance(done, list) else [refused or done] * len(packets)
        return [self._connection.translate(reply) if isinstance(reply, ReplyError) else None for reply in replies]

    async def close(self) -> None:
        await self._connection.close()


class RedisDeadLetters:
    """See `contracts.DeadLetters`. Ids and cursors are ids of entries in the stream of dead letters."""

    def __init__(self, endpoint: RedisEndpoint, keys: StreamKeys) -> None:
        self._keys = keys
        self._connection = open_connection(endpoint).of_queue(keys.stream)

    async def browse(self, limit: int, cursor: str | None = None) -> tuple[Sequence[DeadLetter], str | None]:
        start = f"({cursor}" if cursor else "-"
        entries = await self._connection.call("XRANGE", self._keys.dead, start, "+", "COUNT", limit + 1)
        page = [
            DeadLetter(
                id=id.decode(),
                packet=read_packet(dict(zip(fields[::2], fields[1::2], strict=True))),
                queue=self._keys.queue,
            )
            for id, fields in entries[:limit]
        ]
        return page, page[-1].id if len(entries) > limit else None

    async def remove(self, ids: Sequence[str]) -> int:
        if not ids:
            return 0
        return int(await self._connection.call("XDEL", self._keys.dead, *ids))

    async def count(self) -> int:
        return int(await self._connection.call("XLEN", self._keys.dead))

    async def close(self) -> None:
        await self._connection.close()
