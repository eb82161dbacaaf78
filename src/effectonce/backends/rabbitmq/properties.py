"""Encoding a packet's id and headers as the properties of an AMQP 0-9-1 message, and decoding them.

The packet's id is the property ``message-id``. The headers ``content-type``, ``content-encoding``,
``correlation-id``, ``reply-to``, ``type`` and ``app-id`` are the properties of these names. All others are in the
header table. We write strings and numbers there; values of other types, which another client has written, are read as
strings, and `copy_properties` keeps them as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from .endpoint import load_driver
from .frames import PROPERTIES_AT, encode_short_string

#: The types of properties.
_TEXT, _TABLE, _OCTET, _TIME = "text", "table", "octet", "time"
#: Every property in its order on the wire: its name, its bit among the flags, its type.
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
_PERSISTENT_MODE: Final = b"\x02"
_LONG_STRING: Final = 0x53  # "S"
MAX_INT: Final = (1 << 63) - 1
#: How many bytes a value of each type has in a header table. Values of other types begin with their length.
_VALUE_SIZES: Final = {
    kind: n for kinds, n in ((b"tbB", 1), (b"su", 2), (b"iIf", 4), (b"lLdT", 8), (b"D", 5), (b"V", 0)) for kind in kinds
}

#: Headers that the server itself writes into a message that it redelivers or moves begin with these.
SERVER_HEADERS: Final = ("x-delivery-count", "x-acquired-count", "x-death", "x-first-death-", "x-last-death-")


def make_properties(id: str, headers: Iterable[tuple[str, str | int]]) -> bytes:
    """Encode the properties of a persistent message. `ValueError` where one, or the name of a header, is too long."""
    parts = {"delivery-mode": _PERSISTENT_MODE}
    if id:
        parts["message-id"] = encode_short_string(id)
    table = []
    for name, value in headers:
        if name in _HEADER_PROPERTIES:
            parts[name] = encode_short_string(str(value))
        else:
            table.append(_table_entry(name, value))
    if table:
        parts["headers"] = _long_string(b"".join(table))
    return _join_properties(parts)


def _table_entry(name: str, value: str | int) -> bytes:
    if isinstance(value, int):
        return encode_short_string(name) + b"l" + value.to_bytes(8, "big", signed=True)
    return encode_short_string(name) + b"S" + _long_string(value.encode())


def _long_string(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def _join_properties(parts: Mapping[str, bytes]) -> bytes:
    """Join the encoded properties in their order on the wire, behind the flags that say which of them are there."""
    present = [(name, bit) for name, bit, _ in _PROPERTIES if name in parts]
    flags = sum(bit for _, bit in present)
    return flags.to_bytes(2, "big") + b"".join(parts[name] for name, _ in present)


class ReadProperties(msgspec.Struct):
    """The properties of a received message, in the form that a packet has them."""

    id: str = ""
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    numbers: set[str] = msgspec.field(default_factory=set)  # which of the headers are whole numbers
    server_headers: dict[str, Any] = msgspec.field(default_factory=dict)


def read_properties(header: bytes) -> ReadProperties:
    """Decode the properties in ``header``, the payload of a content header frame."""
    parts = _split_properties(header)
    properties = ReadProperties(id=_decode_text(parts.get("message-id", b"")[1:]))
    for name, part in parts.items():
        if name in _HEADER_PROPERTIES:
            properties.headers[name] = _decode_text(part[1:])
    for name, raw in _split_table(parts.get("headers", b"")):
        if name.startswith(SERVER_HEADERS):
            properties.server_headers[name] = _decode_value(raw)
        elif raw[0] == _LONG_STRING:
            properties.headers[name] = _decode_text(raw[5:])
        else:
            value = _decode_value(raw)
            properties.headers[name] = value_as_text(value)
            if type(value) is int and -MAX_INT - 1 <= value <= MAX_INT:
                properties.numbers.add(name)
    return properties


def copy_properties(header: bytes, added: Mapping[str, str]) -> bytes:
    """Copy the properties of a delivered message, byte by byte, for a copy of it in another queue. Adds ``added``.

    Properties that the server wrote or would act upon are left out: its own headers, the expiration, the user who sent
    the message, and the other queues that it was routed to (CC, BCC).
    """
    parts = _split_properties(header)
    for name in ("expiration", "user-id", "cluster-id"):
        parts.pop(name, None)
    parts["delivery-mode"] = _PERSISTENT_MODE
    table = [_table_entry(name, value) for name, value in added.items() if name not in _HEADER_PROPERTIES]
    for name, raw in _split_table(parts.get("headers", b"")):
        if name not in added and name not in ("CC", "BCC") and not name.startswith(SERVER_HEADERS):
            table.append(encode_short_string(name) + raw)
    parts |= {name: encode_short_string(value) for name, value in added.items() if name in _HEADER_PROPERTIES}
    parts["headers"] = _long_string(b"".join(table))
    return _join_properties(parts)


def _split_properties(header: bytes) -> dict[str, bytes]:
    """Split a content header into the bytes of each property that is present. Those of texts and of the table begin
    with their length."""
    at = PROPERTIES_AT + 2
    flags = int.from_bytes(header[PROPERTIES_AT:at], "big")
    parts = {}
    for name, bit, kind in _PROPERTIES:
        if flags & bit:
            if kind is _TEXT:
                end = at + 1 + header[at]
            elif kind is _TABLE:
                end = at + 4 + int.from_bytes(header[at : at + 4], "big")
            else:
                end = at + (1 if kind is _OCTET else 8)
            parts[name], at = header[at:end], end
    return parts


def _split_table(table: bytes) -> Iterator[tuple[str, bytes]]:
    """Split a header table into the name of each entry and the bytes of its value, which begin with its type's
    octet."""
    at = 4  # behind the length of the table
    while at < len(table):
        value_at = at + 1 + table[at]
        size = _VALUE_SIZES.get(table[value_at])
        if size is None:
            size = 4 + int.from_bytes(table[value_at + 1 : value_at + 5], "big")
        end = value_at + 1 + size
        yield _decode_text(table[at + 1 : value_at]), table[value_at:end]
        at = end


def _decode_text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")


def _decode_value(raw: bytes) -> Any:
    try:
        return load_driver().decode.embedded_value(raw)[1]
    except (ValueError, OverflowError, OSError):  # a time out of range, a type that pamqp does not know
        return raw[1:]


def value_as_text(value: Any) -> str:
    """Turn a decoded value of a header table, which another client has written, into the text of a header."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray):
        return _decode_text(bytes(value))
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, dict | list):
        return msgspec.json.encode(value, enc_hook=str).decode()
    return "" if value is None else str(value)
