"""The headers of BabelQueue's messages, by which brokers and their adapters know them, and its form of dead letters.

`babelqueue.BabelQueue` writes what others route by into a packet's headers, as text: ``bq-job``, ``bq-trace-id``,
``bq-message-id``, ``bq-schema-version``, ``bq-source-lang``, ``bq-attempts``, ``bq-created-at``. An adapter sends these
as its broker's binding wants them, beside the other headers, and makes them headers again where it receives them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, Final

JOB: Final = "bq-job"
TRACE: Final = "bq-trace-id"
ID: Final = "bq-message-id"
VERSION: Final = "bq-schema-version"
LANG: Final = "bq-source-lang"
ATTEMPTS: Final = "bq-attempts"
CREATED: Final = "bq-created-at"
CONTRACT: Final = frozenset((JOB, TRACE, ID, VERSION, LANG, ATTEMPTS, CREATED))
"""The headers that the contract names."""

JSON: Final = "application/json"


def is_babelqueue(headers: Mapping[str, str]) -> bool:
    """Whether a packet with these headers was written by `babelqueue.BabelQueue`."""
    return VERSION in headers and JOB in headers


def others(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that are no part of the contract: what travels beside the envelope."""
    return {name: value for name, value in headers.items() if name not in CONTRACT and name != "content-type"}


def rabbitmq(headers: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str | int]]:
    """The properties, and the headers, which are typed: numbers stay numbers."""
    properties = {
        "type": headers[JOB],
        "correlation_id": headers[TRACE],
        "message_id": headers[ID],
        "app_id": "babelqueue",
        "content_type": JSON,
    }
    own: dict[str, str | int] = {
        "x-schema-version": int(headers[VERSION]),
        "x-source-lang": headers[LANG],
        "x-attempts": int(headers[ATTEMPTS]),
    }
    return properties, own


def header_text(value: Any) -> str | None:
    """A property of a broker with typed ones as a packet's header; None: as if it were not there."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return repr(value) if isinstance(value, float) else str(value)


# -- dead letters

_WHITE = b" \t\r\n"
_MEMBER = b'"dead_letter":'


def dead_letter_record(body: bytes, block: Mapping[str, Any]) -> bytes:
    """``body`` with ``block`` as its member ``dead_letter``, as the contract wants a dead letter.

    A JSON object gets the member added at its end, and every byte before it stays as it is. Anything else is wrapped:
    ``{"raw": …}``, in base64 where it is not text. `original_body` undoes this.
    """
    trimmed = body.strip(_WHITE)
    if _is_object(body):
        start = body.index(trimmed)
        around = [body[:start].decode(), body[start + len(trimmed) :].decode()]
        written = _json({**block, "around": around} if any(around) else block)
        inner = trimmed[1:-1]
        return b"{" + inner + (b"," if inner.strip(_WHITE) else b"") + _MEMBER + written + b"}"
    try:
        raw = {"raw": body.decode()}
    except UnicodeDecodeError:
        raw = {"raw": base64.b64encode(body).decode(), "raw_encoding": "base64"}
    return _json({**raw, "dead_letter": block})


def original_body(record: bytes) -> tuple[bytes, dict[str, Any]]:
    """What `dead_letter_record` was given. A record of someone else is its own body."""
    try:
        members = json.loads(record)
        block = members["dead_letter"]
        if "raw" in members and len(members) - ("raw_encoding" in members) == 2:
            raw = members["raw"]
            return base64.b64decode(raw) if members.get("raw_encoding") == "base64" else raw.encode(), block
        at = record.rindex(_MEMBER)  # inside a string, its quotes would be escaped
        if json.loads(record[at + len(_MEMBER) : -1]) != block:
            return record, block
        inner = record[:at]
        before, after = block.pop("around", ("", ""))
        return b"".join((before.encode(), inner.removesuffix(b","), b"}", after.encode())), block
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return record, {}


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode(
        "utf-8", "surrogatepass"
    )


def _is_object(body: bytes) -> bool:
    """Whether ``body`` is one strict JSON object without a member ``dead_letter``, and all its text can be written."""
    try:
        parsed = json.loads(body.decode(), object_pairs_hook=Pairs, parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        return False
    if not isinstance(parsed, Pairs) or any(name == "dead_letter" for name, _ in parsed):
        return False
    waiting: list[Any] = [parsed]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str) and any("\ud800" <= c <= "\udfff" for c in value):
            return False  # half of a surrogate pair
        if isinstance(value, list | tuple):
            waiting.extend(value)
    return True


class Pairs(list[tuple[str, Any]]):
    """The members of an object, repeated names included."""


def refuse_constant(name: str) -> Any:
    """`json` would take NaN and Infinity."""
    raise ValueError(f"{name} is not JSON")
