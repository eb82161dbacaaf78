"""A queue as a Redis stream: the names of its keys, its scripts, and packets as entries of the stream."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Final

import msgspec

from effectonce.contracts import Packet
from effectonce.values.queue_names import require_name

from .broker_connection import RedisBrokerConnection
from .connection import Script, Word
from .errors import ReplyError

SETTLE_SCRIPT: Final = Script("stream_settle")
MAINTAIN_SCRIPT: Final = Script("stream_maintain")
SCHEDULE_SCRIPT: Final = Script("stream_schedule")

_headers_decoder = msgspec.json.Decoder(dict[str, str])
to_json = msgspec.json.Encoder().encode


class StreamKeys:
    """The names of the keys of a queue and its group. ``{queue}`` is their hash tag: one slot of a Cluster holds them
    all."""

    def __init__(self, namespace: str, queue: str, group: str) -> None:
        self.queue, self.group = queue, require_name(group, "group")
        self.stream = stream_key(namespace, queue)
        self.delayed = f"{self.stream}:delayed:{group}"
        self.dead = f"{self.stream}:dead:{group}"
        self.settled = [key.encode() for key in (self.stream, self.delayed, self.dead)]
        self.maintained = [key.encode() for key in (self.stream, self.delayed, scheduled_key(self.stream))]


def scheduled_key(stream: str) -> str:
    return f"{stream}:scheduled"


def stream_key(namespace: str, queue: str) -> str:
    return f"{namespace}:{{{require_name(queue)}}}"


async def declare_group(connection: RedisBrokerConnection, keys: StreamKeys) -> None:
    """Create the stream and the group where they are missing. A new group reads the stream from its start."""
    create = ("XGROUP", "CREATE", keys.stream, keys.group, "0", "MKSTREAM")
    (reply,) = await connection.exchange(create, check=False)
    if isinstance(reply, ReplyError) and reply.code != "BUSYGROUP":
        raise connection.translate(reply)


def make_command(stream: str, packet: Packet) -> tuple[Word, ...]:
    """Make the command that publishes ``packet``."""
    fields = make_fields(packet)
    if not packet.delay_s:
        return ("XADD", stream, "*", *fields)
    # With its source, which is short: inside a transaction a script that the server does not know would be lost.
    delay_ms = math.ceil(packet.delay_s * 1000)
    return ("EVAL", SCHEDULE_SCRIPT.source, 1, scheduled_key(stream), delay_ms, os.urandom(16), *fields)


def make_fields(packet: Packet) -> tuple[str | bytes, ...]:
    """Make the fields of the entry that carries ``packet``."""
    headers = to_json(packet.headers) if packet.headers else b""
    fields = ("body", packet.body, "headers", headers, "id", packet.id)
    return fields if packet.ordering_key is None else (*fields, "key", packet.ordering_key)


def read_packet(fields: Mapping[bytes, bytes]) -> Packet:
    """Read the packet in an entry, which another producer may have written.

    Bytes that are not UTF-8 are escaped; a field ``headers`` that is not our JSON becomes one header; and where there
    is no field ``body``, the body is all fields as JSON.
    """
    if b"body" not in fields:
        return Packet(
            body=to_json({_text(name): _text(fields[name]) for name in fields if name not in (b"group", b"attempts")})
        )
    headers, key = fields.get(b"headers"), fields.get(b"key")
    try:
        read_headers = _headers_decoder.decode(headers) if headers else {}
    except msgspec.DecodeError:
        read_headers = {"headers": _text(headers or b"")}
    return Packet(
        body=fields[b"body"],
        headers=read_headers,
        id=fields.get(b"id", b"").decode("utf-8", "backslashreplace"),
        ordering_key=None if key is None else _text(key),
    )


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")
