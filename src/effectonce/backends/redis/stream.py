"""A queue on Redis as keys and stream entries, and the broker's connection to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from effectonce.backends.common.broker_errors import as_broker_errors
from effectonce.contracts import ConnectionLost, Packet
from effectonce.errors import ConfigurationError, CorruptRecord, show
from effectonce.values.queue_names import require_name

from .connection import RedisEndpoint, RedisNodeConnection, ReplyError, Script, load_driver, translate
from .socket import AsyncRedisSocket

SETTLE = Script("stream_settle")
TEND = Script("stream_tend")

_headers_decoder = msgspec.json.Decoder(dict[str, str])
to_json = msgspec.json.Encoder().encode


class StreamKeys:
    """The keys of a queue and its group. In a Cluster, one slot holds them all."""

    def __init__(self, namespace: str, queue: str, group: str) -> None:
        self.queue, self.group = require_name(queue), require_name(group, "group")
        self.stream = stream_key(namespace, queue)
        self.delayed = f"{self.stream}:delayed:{group}"
        self.dead = f"{self.stream}:dead:{group}"
        self.names = [key.encode() for key in (self.stream, self.delayed, self.dead)]


def stream_key(namespace: str, queue: str) -> str:
    return f"{namespace}:{{{require_name(queue)}}}"


class RedisBrokerConnection:
    """One connection to Redis that raises a broker's errors. It connects when first used, and again after an error."""

    def __init__(self, endpoint: RedisEndpoint) -> None:
        self.connection = AsyncRedisSocket(endpoint)
        self._node = RedisNodeConnection(lambda endpoint: self.connection, endpoint)
        self._shown = endpoint.shown
        self.pack = load_driver().pack_command

    async def exchange(self, commands: bytes, count: int, block: float = 0.0) -> list[Any]:
        """Send ``commands`` in one write; return their ``count`` replies, some of which may be errors.

        ``block`` is how many seconds the server itself may wait before it replies.
        """
        with as_broker_errors():
            await self.connection.send(commands)
            return await self.connection.receive(count, self.connection.endpoint.timeout + block)

    async def call(self, *words: str | bytes | int) -> Any:
        """Send one command, and return its reply or raise what its error means."""
        (reply,) = await self.exchange(self.pack(words), 1)
        return self.check(reply)

    async def run(self, script: Script, keys: Sequence[bytes], args: Sequence[Any]) -> Sequence[Any]:
        with as_broker_errors():
            try:
                return await self._node.batch(script, keys, args)
            except CorruptRecord as error:
                raise self._foreign_key(error) from error

    def check(self, reply: Any) -> Any:
        """Return ``reply``, or raise what its error means."""
        if not isinstance(reply, ReplyError):
            return reply
        error = translate(reply, self._shown)
        if isinstance(error, ConnectionLost):
            self.connection.drop()
        if isinstance(error, CorruptRecord):
            raise self._foreign_key(reply) from reply
        with as_broker_errors():
            raise error

    def _foreign_key(self, error: Exception) -> ConfigurationError:
        return ConfigurationError(
            f"a key of this queue in {self._shown} is of another kind than effectonce's ({show(error, 200)}); delete "
            "it, or set the option namespace"
        )

    async def declare_group(self, keys: StreamKeys) -> None:
        words = ("XGROUP", "CREATE", keys.stream, keys.group, "0", "MKSTREAM")
        (reply,) = await self.exchange(self.pack(words), 1)
        if not (isinstance(reply, ReplyError) and reply.code == "BUSYGROUP"):
            self.check(reply)

    def close(self) -> None:
        self.connection.drop()


def tend_arguments(
    group: str,
    consumer: str,
    *,
    window_ms: int,
    limit: int = 0,
    cursor: bytes | str = "0-0",
    max_moved: int = 0,
    forget_after_ms: int = 0,
) -> list[str | bytes]:
    """The arguments of the script `TEND`; by default it takes over, moves and forgets nothing."""
    return [group, consumer, str(window_ms), str(limit), cursor, str(max_moved), str(forget_after_ms)]


# -- entries


def fields_of(packet: Packet) -> tuple[str | bytes, ...]:
    """The fields of the entry that carries ``packet``."""
    headers = to_json(packet.headers) if packet.headers else b""
    if packet.ordering_key is None:
        return "body", packet.body, "headers", headers, "id", packet.id
    return "body", packet.body, "headers", headers, "id", packet.id, "key", packet.ordering_key


def read_headers(raw: bytes) -> dict[str, str]:
    """The headers of an entry. Where another producer has written something else there, it is one header, as text."""
    if not raw:
        return {}
    try:
        return _headers_decoder.decode(raw)
    except msgspec.DecodeError:
        return {"headers": raw.decode("utf-8", "backslashreplace")}


def packet_of(named: Mapping[bytes, bytes]) -> Packet:
    """The packet in an entry's fields. Where another producer has written the entry, the body is its fields as JSON."""
    if b"body" not in named:
        texts = {as_text(name): as_text(value) for name, value in named.items() if name not in (b"group", b"attempts")}
        return Packet(body=to_json(texts))
    key = named.get(b"key")
    return Packet(
        body=named[b"body"],
        headers=read_headers(named.get(b"headers", b"")),
        id=as_text(named.get(b"id", b"")),
        ordering_key=None if key is None else as_text(key),
    )


def as_text(raw: bytes) -> str:
    """``raw`` as text. Another producer may have written it: what is not UTF-8 is escaped."""
    return raw.decode("utf-8", "backslashreplace")
