"""The properties of a message of AMQP 0-9-1: a packet's id and headers as bytes, and back.

The message's id is the property ``message_id``. The headers ``content-type``, ``content-encoding``,
``correlation-id``, ``reply-to``, ``type`` and ``app-id`` are the properties of these names; all others are the header
table, whose values are strings and numbers as we write them. Other types that another client has written there are read
as strings; `copy_properties` keeps them as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

import msgspec

from .endpoint import load_driver
from .frames import short_string

_TEXT, _TABLE, _OCTET, _TIME = "text", "table", "octet", "time"
#: Every property in the order of the wire: its name, its bit among the flags, its type.
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
_HEADER_PROPERTIES: Final = frozenset(
    ("content-type", "content-encoding", "correlation-id", "reply-to", "type", "app-id")
)
_PERSISTENT: Final = b"\x02"
_LONG_STRING: Final = 0x53  # "S"
MAX_INT: Final = (1 << 63) - 1
#: How many bytes a value of each type has in a header table. Types that are missing here begin with their length.
_VALUE_SIZES: Final = {
    kind: n for kinds, n in ((b"tbB", 1), (b"su", 2), (b"iIf", 4), (b"lLdT", 8), (b"D", 5), (b"V", 0)) for kind in kinds
}

#: Headers that the server itself writes into a message that it redelivers or moves begin with these.
SERVER_HEADERS: Final = ("x-delivery-count", "x-acquired-count", "x-death", "x-first-death-", "x-last-death-")


def make_properties(id: str, headers: Iterable[tuple[str, str | int]]) -> bytes:
    """The properties of a persistent message. `ValueError` where one, or the name of a header, is too long."""
    parts = {"delivery-mode": _PERSISTENT}
    if id:
        parts["message-id"] = short_string(id)
    table = []
    for name, value in headers:
        if name in _HEADER_PROPERTIES:
            parts[name] = short_string(str(value))
        else:
            table.append(_table_entry(name, value))
    if table:
        parts["headers"] = _long_string(b"".join(table))
    return _join_properties(parts)


def _table_entry(name: str, value: str | int) -> bytes:
    if isinstance(value, int):
        return short_string(name) + b"l" + value.to_bytes(8, "big", signed=True)
    return short_string(name) + b"S" + _long_string(value.encode())


def _long_string(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def _join_properties(parts: Mapping[str, bytes]) -> bytes:
    flags, present = 0, [b""]
    for name, bit, _ in _PROPERTIES:
        if name in parts:
            flags |= bit
            present.append(parts[name])
    present[0] = flags.to_bytes(2, "big")
    return b"".join(present)


class ReadProperties(msgspec.Struct):
    """The properties of a message, as a packet has them."""

    id: str = ""
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    numbers: set[str] = msgspec.field(default_factory=set)  # which of the headers are whole numbers
    server_headers: dict[str, Any] = msgspec.field(default_factory=dict)


def read_properties(header: bytes) -> ReadProperties:
    """The properties in the payload of a content header."""
    properties = ReadProperties()
    for name, kind, at, end in _property_slices(header):
        if kind is _TABLE:
            _read_table(header, at, end, properties)
        elif name in _HEADER_PROPERTIES:
            properties.headers[name] = header[at + 1 : end].decode("utf-8", "backslashreplace")
        elif name == "message-id":
            properties.id = header[at + 1 : end].decode("utf-8", "backslashreplace")
    return properties


def _read_table(data: bytes, at: int, end: int, properties: ReadProperties) -> None:
    for name, value_at, value_end in _table_entries(data, at, end):
        if name.startswith(SERVER_HEADERS):
            properties.server_headers[name] = _value(data, value_at, value_end)
        elif data[value_at] == _LONG_STRING:
            properties.headers[name] = data[value_at + 5 : value_end].decode("utf-8", "backslashreplace")
        else:
            value = _value(data, value_at, value_end)
            properties.headers[name] = value_text(value)
            if type(value) is int and -MAX_INT - 1 <= value <= MAX_INT:
                properties.numbers.add(name)


def copy_properties(header: bytes, added: Mapping[str, str]) -> bytes:
    """The properties of a delivered message, byte by byte, for a copy of it in another queue, with ``added`` headers.

    Properties that the server wrote or would act upon are left out: its own headers, the expiration, the user who sent
    the message, and the other queues that it was routed to (CC, BCC).
    """
    parts = {name: header[at:end] for name, _, at, end in _property_slices(header)}
    for name in ("expiration", "user-id", "cluster-id"):
        parts.pop(name, None)
    parts["delivery-mode"] = _PERSISTENT
    table = [_table_entry(name, value) for name, value in added.items() if name not in _HEADER_PROPERTIES]
    if raw := parts.get("headers"):
        for key, value_at, value_end in _table_entries(raw, 0, len(raw)):
            if key not in added and key not in ("CC", "BCC") and not key.startswith(SERVER_HEADERS):
                table.append(short_string(key) + raw[value_at:value_end])
    parts |= {name: short_string(value) for name, value in added.items() if name in _HEADER_PROPERTIES}
    parts["headers"] = _long_string(b"".join(table))
    return _join_properties(parts)


@lru_cache(256)
def _present_properties(flags: int) -> tuple[tuple[str, str], ...]:
    return tuple((name, kind) for name, bit, kind in _PROPERTIES if flags & bit)


def _property_slices(header: bytes) -> Iterator[tuple[str, str, int, int]]:
    """Each property that is present: its name and type, and where its bytes begin and end."""
    at = 14
    for name, kind in _present_properties(int.from_bytes(header[12:14], "big")):
        if kind is _TEXT:
            end = at + 1 + header[at]
        elif kind is _TABLE:
            end = at + 4 + int.from_bytes(header[at : at + 4], "big")
        else:
            end = at + (1 if kind is _OCTET else 8)
        yield name, kind, at, end
        at = end


def _table_entries(data: bytes, at: int, end: int) -> Iterator[tuple[str, int, int]]:
    """Each entry of the table at ``at``: its name, and where its value begins (with the type octet) and ends."""
    at += 4
    while at < end:
        value_at = at + 1 + data[at]
        name = data[at + 1 : value_at].decode("utf-8", "backslashreplace")
        size = _VALUE_SIZES.get(data[value_at])
        if size is None:
            size = 4 + int.from_bytes(data[value_at + 1 : value_at + 5], "big")
        at = value_at + 1 + size
        yield name, value_at, at


def _value(data: bytes, at: int, end: int) -> Any:
    try:
        return load_driver().decode.embedded_value(data[at:end])[1]
    except (ValueError, OverflowError, OSError):  # a time out of range, a type that pamqp does not know
        return data[at + 1 : end]


def value_text(value: Any) -> str:
    """A typed value of a header table, which another client has written, as a string."""
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
