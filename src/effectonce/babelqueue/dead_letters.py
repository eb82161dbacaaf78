"""Dead letters in the form of BabelQueue's contract: the message's own JSON, with a member ``dead_letter`` added."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import msgspec

_JSON_WHITESPACE = b" \t\r\n"
_DEAD_LETTER_MEMBER = b'"dead_letter":'


def dead_letter_record(body: bytes, block: Mapping[str, Any]) -> bytes:
    """Add ``block`` to ``body`` as the member ``dead_letter``. `original_body` undoes this, byte for byte.

    A JSON object gets the member at its end, and every byte before it stays as it is; white space around the object
    moves into the block, as ``around``. Any other body is wrapped: ``{"raw": …}``, in base64 where it is not text.
    """
    trimmed = body.strip(_JSON_WHITESPACE)
    if _is_strict_object(body):
        start = body.index(trimmed)
        around = [body[:start].decode(), body[start + len(trimmed) :].decode()]
        written = _json({**block, "around": around} if any(around) else block)
        inner = trimmed[1:-1]
        comma = b"," if inner.strip(_JSON_WHITESPACE) else b""
        return b"".join((b"{", inner, comma, _DEAD_LETTER_MEMBER, written, b"}"))
    try:
        raw = {"raw": body.decode()}
    except UnicodeDecodeError:
        raw = {"raw": base64.b64encode(body).decode(), "raw_encoding": "base64"}
    return _json({**raw, "dead_letter": block})


def original_body(record: bytes) -> tuple[bytes, dict[str, Any]]:
    """Return the body and the block that were given to `dead_letter_record`. A record that it did not write is returned
    as the body."""
    try:
        members = json.loads(record)
        block = members["dead_letter"]
        if "raw" in members and len(members) - ("raw_encoding" in members) == 2:
            raw = members["raw"]
            return base64.b64decode(raw) if members.get("raw_encoding") == "base64" else raw.encode(), block
        member_start = record.rindex(_DEAD_LETTER_MEMBER)  # not inside a string: there its quotes would be escaped
        if json.loads(record[member_start + len(_DEAD_LETTER_MEMBER) : -1]) != block:
            return record, block
        opened_object = record[:member_start].removesuffix(b",")
        before, after = block.pop("around", ("", ""))
        return b"".join((before.encode(), opened_object, b"}", after.encode())), block
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return record, {}


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode(
        "utf-8", "surrogatepass"
    )


def _is_strict_object(body: bytes) -> bool:
    """Whether ``body`` is one strict JSON object in valid UTF-8, without a member ``dead_letter``."""
    try:
        members = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(members, dict) and "dead_letter" not in members
