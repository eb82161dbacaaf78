"""A packet as a message of RabbitMQ: its headers in the broker's terms, ours among them, and what the broker adds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from effectonce.babelqueue import headers as bindings
from effectonce.backends.rabbitmq import frames
from effectonce.contracts import Packet

MAX_BODY: Final = 16 * 1024 * 1024
"""RabbitMQ 4 refuses more, and closes the channel for it; RabbitMQ 3 takes 128 MB."""

#: Headers of ours that no packet shows: deliveries before the last delay, the id of a dead letter, the ordering key.
ATTEMPTS: Final = "eo-attempts"
LETTER: Final = "eo-letter"
ORDERING_KEY: Final = "eo-ordering-key"

#: A message as it is sent: its properties and its body.
Content = tuple[bytes, bytes]


def content_of(packet: Packet) -> Content:
    """`ValueError` for what RabbitMQ does not take."""
    if len(packet.body) > MAX_BODY:
        raise ValueError(f"its body has {len(packet.body)} bytes, and {MAX_BODY} are the most")
    headers: Mapping[str, str | int] = packet.headers
    if packet.headers.keys() >= _CONTRACT:
        properties, own = bindings.rabbitmq(packet.headers)
        named = {name.replace("_", "-"): value for name, value in properties.items() if name != "message_id"}
        headers = {**bindings.others(packet.headers), **named, **own}
    if packet.ordering_key is not None:
        headers = {**headers, ORDERING_KEY: packet.ordering_key}
    return frames.properties(packet.id, headers.items()), packet.body


def packet_of(header: bytes, body: bytes) -> tuple[Packet, dict[str, str], dict[str, Any]]:
    """The packet, the headers that are ours, and what the broker has noted."""
    id, headers, notes = frames.read(header)
    own: dict[str, str] = {name: headers.pop(name) for name in (ATTEMPTS, LETTER, ORDERING_KEY) if name in headers}
    if "x-schema-version" in headers and "type" in headers:
        headers[bindings.ID] = id
        headers |= {to: headers.pop(name) for name, to in _BABELQUEUE.items() if name in headers}
        headers.pop("app-id", None)
    return Packet(body=body, headers=headers, id=id, ordering_key=own.get(ORDERING_KEY)), own, notes


_CONTRACT: Final = bindings.CONTRACT - {bindings.CREATED}
#: What `bindings.rabbitmq` makes of them, undone.
_BABELQUEUE: Final = {
    "type": bindings.JOB,
    "correlation-id": bindings.TRACE,
    "x-schema-version": bindings.VERSION,
    "x-source-lang": bindings.LANG,
    "x-attempts": bindings.ATTEMPTS,
}
