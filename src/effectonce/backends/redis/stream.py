"""A queue in Redis as keys and entries, and a connection that speaks of brokers when it fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from effectonce.backends.common.broker_errors import as_broker
from effectonce.contracts import ConnectionLost, Packet
from effectonce.errors import ConfigurationError, CorruptRecord, show
from effectonce.values.queue_names import require_name

from .connection import RedisEndpoint, RedisNodeConnection, ReplyError, Script, load_driver, translate
from .socket import AsyncRedisSocket

SETTLE = Script("stream_settle")
TEND = Script("stream_tend")

_headers = msgspec.json.Decoder(dict[str, str])
to_json = msgspec.json.Encoder().encode


class Keys:
    """What a queue and its group are called in Redis. In a Cluster, one slot holds them all."""

    def __init__(self, namespace: str, queue: str, group: str) -> None:
        self.queue, self.group = require_name(queue), require_name(group, "group")
        self.stream = stream_of(namespace, queue)
        self.delayed = f"{self.stream}:delayed:{group}"
        self.dead = f"{self.stream}:dead:{group}"
        self.names = [each.encode() for each in (self.stream, self.delayed, self.dead)]


def stream_of(namespace: str, queue: str) -> str:
    return f"{namespace}:{{{require_name(queue)}}}"


class BrokerWire:
    """One connection of ours, and the errors of a broker."""

    def __init__(self, endpoint: RedisEndpoint) -> None:
        self.connection = AsyncRedisSocket(endpoint)
        self._node = RedisNodeConnection(lambda endpoint: self.connection, endpoint)
        self._shown = endpoint.shown
        self.pack = load_driver().pack_command

    async def exchange(self, commands: bytes, count: int, patience: float = 0.0) -> list[Any]:
        """Send ``commands`` in one write; their ``count`` replies, some of which may be errors."""
        with as_broker():
            await self.connection.send(commands)
            return await self.connection.receive(count, self.connection.endpoint.timeout + patience)

    async def ask(self, *words: str | bytes | int) -> Any:
        (reply,) = await self.exchange(self.pack(words), 1)
        return self.checked(reply)

    async def run(self, script: Script, keys: Sequence[bytes], args: Sequence[Any]) -> Sequence[Any]:
        with as_broker():
            try:
                return await self._node.batch(script, keys, args)
            except CorruptRecord as error:
                raise self._not_ours(error) from error

    def checked(self, reply: Any) -> Any:
        """The reply, or what its error means."""
        if not isinstance(reply, ReplyError):
            return reply
        error = translate(reply, self._shown)
        if isinstance(error, ConnectionLost):
            self.connection.drop()
        if isinstance(error, CorruptRecord):
            raise self._not_ours(reply) from reply
        with as_broker():
            raise error

    def _not_ours(self, error: Exception) -> ConfigurationError:
        return ConfigurationError(
            f"a key of this queue in {self._shown} is of another kind than effectonce's ({show(error, 200)}); delete "
            "it, or set the option namespace"
        )

    async def declare(self, keys: Keys) -> None:
        words = ("XGROUP", "CREATE", keys.stream, keys.group, "0", "MKSTREAM")
        (reply,) = await self.exchange(self.pack(words), 1)
        if not (isinstance(reply, ReplyError) and reply.code == "BUSYGROUP"):
            self.checked(reply)

    def close(self) -> None:
        self.connection.drop()


# Entries


def fields_of(packet: Packet) -> tuple[str | bytes, ...]:
    """A packet as an entry's fields."""
    headers = to_json(packet.headers) if packet.headers else b""
    if packet.ordering_key is None:
        return "body", packet.body, "headers", headers, "id", packet.id
    return "body", packet.body, "headers", headers, "id", packet.id, "key", packet.ordering_key


def read_headers(raw: bytes) -> dict[str, str]:
    """Headers as they were written; a foreign producer's own notion of them is no reason to lose the message."""
    if not raw:
        return {}
    try:
        return _headers.decode(raw)
    except msgspec.DecodeError:
        return {"headers": raw.decode("utf-8", "backslashreplace")}


def packet_of(named: Mapping[bytes, bytes]) -> Packet:
    """The packet in an entry's fields; of one that is not written by us, the body is its fields as JSON."""
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
    """What is not UTF-8 was not written by us; it is shown, not refused."""
    return raw.decode("utf-8", "backslashreplace")
