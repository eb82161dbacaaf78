"""The frames of one message of AMQP 0-9-1: a packet as properties and body, and back.

The message's id is the property ``message_id``. The headers ``content-type``, ``content-encoding``,
``correlation-id``, ``reply-to``, ``type`` and ``app-id`` are the properties of these names; all others are the header
table, whose values are strings and numbers as we write them. What others have written there is turned into strings when
it is read, and stays as it is in a `copied` message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

import msgspec

from .connection import CONTENT_BODY, CONTENT_HEADER, HEADER, METHOD, driver

SHORT: Final = 255

_TEXT, _TABLE, _OCTET, _TIME = "text", "table", "octet", "time"
#: Every property in the order of the wire: its name, its bit among the flags, its form.
_PROPERTIES: Final = (
    ("content-type", 1 << 15, _TEXT),
    ("content-encoding", 1 << 14, _TEXT),
    ("headers", 1 << 13, _TABLE),
    ("delivery-mode", 1 << 12, _OCTET),
    ("priority", 1 << 11, _OCTET),
    ("correlation-id", 1 << 10, _TEXT),
    ("reply-to", 1 << 9, _TEXT),
    ("expiration", 1 << 8, _TEXT),
    ("message-id", 1 << 7, _TEXT),
    ("timestamp", 1 << 6, _TIME),
    ("type", 1 << 5, _TEXT),
    ("user-id", 1 << 4, _TEXT),
    ("app-id", 1 << 3, _TEXT),
    ("cluster-id", 1 << 2, _TEXT),
)
_HEADERS: Final = frozenset(("content-type", "content-encoding", "correlation-id", "reply-to", "type", "app-id"))
_PERSISTENT: Final = b"\x02"
_STRING: Final = 0x53
#: Bytes of a value of each type in a header table; those that are not here begin with their length.
_SIZES: Final = {
    kind: n for kinds, n in ((b"tbB", 1), (b"su", 2), (b"iIf", 4), (b"lLdT", 8), (b"D", 5), (b"V", 0)) for kind in kinds
}

#: What the broker itself writes into the table of a message that it delivers again or moves.
NOTES: Final = ("x-delivery-count", "x-acquired-count", "x-death", "x-first-death-", "x-last-death-")


def ack(channel: int, tag: int) -> bytes:
    return b"\x01%b\x00\x00\x00\x0d\x00\x3c\x00\x50%b\x00\xce" % (channel.to_bytes(2, "big"), tag.to_bytes(8, "big"))


def nack(channel: int, tag: int) -> bytes:
    """Back to the queue."""
    return b"\x01%b\x00\x00\x00\x0d\x00\x3c\x00\x78%b\x02\xce" % (channel.to_bytes(2, "big"), tag.to_bytes(8, "big"))


def publish(channel: int, exchange: str, routing_key: str) -> bytes:
    """The first frame of a message that has to arrive in a queue (``mandatory``)."""
    return _frame(METHOD, channel, b"\x00\x3c\x00\x28\x00\x00%b%b\x01" % (_short(exchange), _short(routing_key)))


def content(channel: int, properties: bytes, body: bytes, frame_max: int) -> bytes:
    """The frames behind it."""
    size = len(body)
    header = _frame(CONTENT_HEADER, channel, b"\x00\x3c\x00\x00%b%b" % (size.to_bytes(8, "big"), properties))
    room = frame_max - 8
    if size <= room:
        return header + _frame(CONTENT_BODY, channel, body) if size else header
    return header + b"".join(_frame(CONTENT_BODY, channel, body[at : at + room]) for at in range(0, size, room))


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return HEADER.pack(kind, channel, len(payload)) + payload + b"\xce"


def _short(text: str) -> bytes:
    data = text.encode()
    if len(data) > SHORT:
        raise ValueError(f"{text[:40]}… is longer than {SHORT} bytes")
    return bytes((len(data),)) + data


# -- properties


def properties(id: str, headers: Iterable[tuple[str, str | int]]) -> bytes:
    """Those of a persistent message. `ValueError` where one of them, or the name of a header, is too long."""
    parts = {"delivery-mode": _PERSISTENT}
    if id:
        parts["message-id"] = _short(id)
    table = []
    for name, value in headers:
        if name in _HEADERS:
            parts[name] = _short(str(value))
        else:
            table.append(_entry(name, value))
    if table:
        parts["headers"] = _long(b"".join(table))
    return _assembled(parts)


def _entry(name: str, value: str | int) -> bytes:
    if isinstance(value, int):
        return _short(name) + b"l" + value.to_bytes(8, "big", signed=True)
    return _short(name) + b"S" + _long(value.encode())


def _long(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def _assembled(parts: Mapping[str, bytes]) -> bytes:
    flags, found = 0, [b""]
    for name, bit, _ in _PROPERTIES:
        if name in parts:
            flags |= bit
            found.append(parts[name])
    found[0] = flags.to_bytes(2, "big")
    return b"".join(found)


def read(header: bytes) -> tuple[str, dict[str, str], dict[str, Any]]:
    """The id, the headers, and what the broker has noted, from the payload of a content header."""
    id = ""
    headers: dict[str, str] = {}
    notes: dict[str, Any] = {}
    for name, form, at, end in _parts(header):
        if form is _TABLE:
            for key, value_at, value_end in _entries(header, at, end):
                if key.startswith(NOTES):
                    notes[key] = _value(header, value_at, value_end)
                elif header[value_at] == _STRING:
                    headers[key] = header[value_at + 5 : value_end].decode("utf-8", "backslashreplace")
                else:
                    headers[key] = text(_value(header, value_at, value_end))
        elif name in _HEADERS:
            headers[name] = header[at + 1 : end].decode("utf-8", "backslashreplace")
        elif name == "message-id":
            id = header[at + 1 : end].decode("utf-8", "backslashreplace")
    return id, headers, notes


def copied(header: bytes, added: Mapping[str, str]) -> bytes:
    """The properties of a message that was delivered, byte by byte, for a copy of it elsewhere; ``added`` to them.

    Left out is what the broker wrote, or would act upon: its notes, the time after which the message would vanish, the
    user who sent it, and the other queues that it was to go to.
    """
    parts = {name: header[at:end] for name, _, at, end in _parts(header)}
    for name in ("expiration", "user-id", "cluster-id"):
        parts.pop(name, None)
    parts["delivery-mode"] = _PERSISTENT
    table = [_entry(name, value) for name, value in added.items() if name not in _HEADERS]
    if raw := parts.get("headers"):
        for key, value_at, value_end in _entries(raw, 0, len(raw)):
            if key not in added and key not in ("CC", "BCC") and not key.startswith(NOTES):
                table.append(_short(key) + raw[value_at:value_end])
    parts |= {name: _short(value) for name, value in added.items() if name in _HEADERS}
    parts["headers"] = _long(b"".join(table))
    return _assembled(parts)


@lru_cache(256)
def _layout(flags: int) -> tuple[tuple[str, str], ...]:
    return tuple((name, form) for name, bit, form in _PROPERTIES if flags & bit)


def _parts(header: bytes) -> Iterator[tuple[str, str, int, int]]:
    """Each property that is there: its name and form, and where its bytes begin and end."""
    at = 14
    for name, form in _layout(int.from_bytes(header[12:14], "big")):
        if form is _TEXT:
            end = at + 1 + header[at]
        elif form is _TABLE:
            end = at + 4 + int.from_bytes(header[at : at + 4], "big")
        else:
            end = at + (1 if form is _OCTET else 8)
        yield name, form, at, end
        at = end


def _entries(data: bytes, at: int, end: int) -> Iterator[tuple[str, int, int]]:
    """Each entry of the table there: its name, and where its value begins (with the type) and ends."""
    at += 4
    while at < end:
        value_at = at + 1 + data[at]
        name = data[at + 1 : value_at].decode("utf-8", "backslashreplace")
        size = _SIZES.get(data[value_at])
        if size is None:
            size = 4 + int.from_bytes(data[value_at + 1 : value_at + 5], "big")
        at = value_at + 1 + size
        yield name, value_at, at


def _value(data: bytes, at: int, end: int) -> Any:
    try:
        return driver().decode.embedded_value(data[at:end])[1]
    except (ValueError, OverflowError, OSError):  # a time that no clock shows, a type that pamqp does not know
        return data[at + 1 : end]


def text(value: Any) -> str:
    """A value of another's header table as a string."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "backslashreplace")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, dict | list):
        return msgspec.json.encode(value, enc_hook=str).decode()
    return "" if value is None else str(value)
