"""Frames of AMQP 0-9-1 that each message costs, as bytes. The rare ones are pamqp's: see `connection`."""

from __future__ import annotations

from struct import Struct
from typing import Final

FRAME_HEADER: Final = Struct(">BHI")  # kind, channel, size of the payload; the payload and the end octet follow
METHOD, CONTENT_HEADER, CONTENT_BODY = 1, 2, 3
FRAME_END: Final = 0xCE
HEARTBEAT: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"

MAX_SHORT_STRING_BYTES: Final = 255


def ack(channel: int, tag: int) -> bytes:
    """The frame of basic.ack."""
    return b"\x01%b\x00\x00\x00\x0d\x00\x3c\x00\x50%b\x00\xce" % (channel.to_bytes(2, "big"), tag.to_bytes(8, "big"))


def nack(channel: int, tag: int) -> bytes:
    """The frame of basic.nack, with requeue."""
    return b"\x01%b\x00\x00\x00\x0d\x00\x3c\x00\x78%b\x02\xce" % (channel.to_bytes(2, "big"), tag.to_bytes(8, "big"))


def publish(channel: int, exchange: str, routing_key: str) -> bytes:
    """The first frame of a message. It is ``mandatory``: the server returns a message that no queue gets."""
    return _frame(
        METHOD, channel, b"\x00\x3c\x00\x28\x00\x00%b%b\x01" % (short_string(exchange), short_string(routing_key))
    )


def content(channel: int, properties: bytes, body: bytes, frame_max: int) -> bytes:
    """The frames of a message behind `publish`: its header and its body."""
    size = len(body)
    header = _frame(CONTENT_HEADER, channel, b"\x00\x3c\x00\x00%b%b" % (size.to_bytes(8, "big"), properties))
    room = frame_max - 8
    if size <= room:
        return header + _frame(CONTENT_BODY, channel, body) if size else header
    return header + b"".join(_frame(CONTENT_BODY, channel, body[at : at + room]) for at in range(0, size, room))


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return FRAME_HEADER.pack(kind, channel, len(payload)) + payload + b"\xce"


def short_string(text: str) -> bytes:
    """``text`` after its length. `ValueError` where it is too long."""
    data = text.encode()
    if len(data) > MAX_SHORT_STRING_BYTES:
        raise ValueError(f"{text[:40]}… is longer than {MAX_SHORT_STRING_BYTES} bytes")
    return bytes((len(data),)) + data
