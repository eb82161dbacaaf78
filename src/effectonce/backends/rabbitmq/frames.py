"""Encoding the AMQP 0-9-1 frames that each message costs. pamqp encodes the rare ones: see `connection`.

A frame is its kind, its channel, the size of its payload, the payload, and an end octet. The payload of a method frame
begins with the class and the method: ``00 3c 00 50`` is basic.ack.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

FRAME_HEADER: Final = Struct(">BHI")  # kind, channel, size of the payload; the payload and the end octet follow
#: The types of frames, by their numbers in AMQP 0-9-1.
METHOD_FRAME, CONTENT_HEADER_FRAME, CONTENT_BODY_FRAME = 1, 2, 3
HIGHEST_FRAME_KIND: Final = 8  # that of a heartbeat
FRAME_END: Final = 0xCE
FRAME_OVERHEAD_BYTES: Final = FRAME_HEADER.size + 1  # the header and the end octet
#: Where the properties begin in the payload of a content header frame: behind class, weight and the size of the body.
PROPERTIES_AT: Final = 12
HEARTBEAT_FRAME: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"

MAX_SHORT_STRING_BYTES: Final = 255


def encode_ack(channel: int, tag: int) -> bytes:
    """Encode basic.ack for one delivery."""
    return b"\x01%b\x00\x00\x00\x0d\x00\x3c\x00\x50%b\x00\xce" % (channel.to_bytes(2, "big"), tag.to_bytes(8, "big"))


def encode_requeue(channel: int, tag: int) -> bytes:
    """Encode basic.nack with ``requeue`` for one delivery."""
    return b"\x01%b\x00\x00\x00\x0d\x00\x3c\x00\x78%b\x02\xce" % (channel.to_bytes(2, "big"), tag.to_bytes(8, "big"))


def encode_publish(channel: int, exchange: str, routing_key: str) -> bytes:
    """Encode basic.publish, the first frame of a message. It is ``mandatory``: the server returns a message that
    reaches no queue."""
    names = encode_short_string(exchange) + encode_short_string(routing_key)
    return _frame(METHOD_FRAME, channel, b"\x00\x3c\x00\x28\x00\x00%b\x01" % names)


def encode_content(channel: int, properties: bytes, body: bytes, frame_max: int) -> bytes:
    """Encode the frames of a message that follow basic.publish: its header, and its body in as many as needed."""
    size = len(body)
    header = _frame(CONTENT_HEADER_FRAME, channel, b"\x00\x3c\x00\x00%b%b" % (size.to_bytes(8, "big"), properties))
    room = frame_max - FRAME_OVERHEAD_BYTES
    if size <= room:
        return header + _frame(CONTENT_BODY_FRAME, channel, body) if size else header
    return header + b"".join(_frame(CONTENT_BODY_FRAME, channel, body[at : at + room]) for at in range(0, size, room))


def encode_method(channel: int, payload: bytes) -> bytes:
    """Encode a method frame. ``payload`` begins with the class and the method."""
    return _frame(METHOD_FRAME, channel, payload)


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return FRAME_HEADER.pack(kind, channel, len(payload)) + payload + b"\xce"


def encode_short_string(text: str) -> bytes:
    """Encode ``text`` behind its length, which is one byte. `ValueError` where it is too long for that."""
    data = text.encode()
    if len(data) > MAX_SHORT_STRING_BYTES:
        raise ValueError(f"{text[:40]}… is longer than {MAX_SHORT_STRING_BYTES} bytes")
    return bytes((len(data),)) + data
