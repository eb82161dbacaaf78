"""Writing a packet into a RabbitMQ message, and reading it back with the headers that the server has added."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from msgspec import Struct

from effectonce.contracts import Packet

from .properties import make_properties, read_properties

#: RabbitMQ 4 refuses more, and closes the channel for it; RabbitMQ 3 takes 128 MB.
MAX_BODY_BYTES: Final = 16 * 1024 * 1024

#: Headers of ours that packets do not show: how often the message was delivered before its last delay, the id of the
#: dead letter, the ordering key.
ATTEMPTS_HEADER: Final = "eo-attempts"
DEAD_LETTER_ID: Final = "eo-letter"
ORDERING_KEY: Final = "eo-ordering-key"
OWN_HEADERS: Final = (ATTEMPTS_HEADER, DEAD_LETTER_ID, ORDERING_KEY)


class Content(NamedTuple):
    """A message as it is sent."""

    properties: bytes
    body: bytes


class ReceivedPacket(Struct, frozen=True):
    """A packet as it was received, and the headers of the message that are not the packet's."""

    packet: Packet
    own_headers: dict[str, str]  # `OWN_HEADERS`
    server_headers: dict[str, Any]  # those that the server has added


def make_content(packet: Packet) -> Content:
    """Make the message that carries ``packet``. `ValueError` where RabbitMQ does not accept it."""
    if len(packet.body) > MAX_BODY_BYTES:
        raise ValueError(f"its body has {len(packet.body)} bytes, and the limit is {MAX_BODY_BYTES}")
    packet = packet.for_broker("rabbitmq")
    headers: dict[str, str | int] = {
        name: int(value) if name in packet.numbers else value for name, value in packet.headers.items()
    }
    if packet.ordering_key is not None:
        headers[ORDERING_KEY] = packet.ordering_key
    return Content(make_properties(packet.id, headers.items()), packet.body)


def read_packet(header: bytes, body: bytes) -> ReceivedPacket:
    """Read the packet in a message, which another client may have sent."""
    properties = read_properties(header)
    headers = properties.headers
    own: dict[str, str] = {name: headers.pop(name) for name in OWN_HEADERS if name in headers}
    packet = Packet(
        body=body,
        headers=headers,
        id=properties.id,
        ordering_key=own.get(ORDERING_KEY),
        numbers=frozenset(properties.numbers - own.keys()),
    )
    return ReceivedPacket(packet, own, properties.server_headers)
