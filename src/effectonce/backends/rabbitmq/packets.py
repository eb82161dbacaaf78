"""A packet as a message of RabbitMQ: its headers and ours among the properties, and what the server adds to them."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from effectonce.contracts import Packet

from .properties import make_properties, read_properties

MAX_BODY_BYTES: Final = 16 * 1024 * 1024
"""RabbitMQ 4 refuses more, and closes the channel for it; RabbitMQ 3 takes 128 MB."""

#: Headers of ours that packets do not show: deliveries before the last delay, the dead letter's id, the ordering key.
ATTEMPTS: Final = "eo-attempts"
DEAD_LETTER_ID: Final = "eo-letter"
ORDERING_KEY: Final = "eo-ordering-key"
OWN_HEADERS: Final = (ATTEMPTS, DEAD_LETTER_ID, ORDERING_KEY)

#: A message as it is sent: its properties and its body.
Content = tuple[bytes, bytes]


class ReceivedPacket(Struct, frozen=True):
    packet: Packet
    own_headers: dict[str, str]  # those of ours
    server_headers: dict[str, Any]  # those that the server has added


def content_of(packet: Packet) -> Content:
    """The message that carries ``packet``. `ValueError` where RabbitMQ does not take it."""
    if len(packet.body) > MAX_BODY_BYTES:
        raise ValueError(f"its body has {len(packet.body)} bytes, and {MAX_BODY_BYTES} are the most")
    packet = packet.for_broker("rabbitmq")
    headers: dict[str, str | int] = {
        name: int(value) if name in packet.numbers else value for name, value in packet.headers.items()
    }
    if packet.ordering_key is not None:
        headers[ORDERING_KEY] = packet.ordering_key
    return make_properties(packet.id, headers.items()), packet.body


def packet_of(header: bytes, body: bytes) -> ReceivedPacket:
    """The packet in a message, which another client may have sent."""
    read = read_properties(header)
    own: dict[str, str] = {name: read.headers.pop(name) for name in OWN_HEADERS if name in read.headers}
    packet = Packet(
        body=body,
        headers=read.headers,
        id=read.id,
        ordering_key=own.get(ORDERING_KEY),
        numbers=frozenset(read.numbers - own.keys()),
    )
    return ReceivedPacket(packet, own, read.server_headers)
