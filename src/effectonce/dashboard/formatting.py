"""Stored values as pages show them: always text, bounded, never markup (F65: a stored value runs as a script)."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from effectonce.core.codec import VERSION, decode_error, without_trace
from effectonce.core.privacy import VERSION as SEALED
from effectonce.errors import CorruptRecord, show
from effectonce.record import EXHAUSTED, Record

MAX_TEXT_CHARACTERS: Final = 20_000

STATES: Final = {"claimed": "running", "done": "done", "failed": "failed", "in_doubt": "in doubt", "free": "released"}


def line(text: object, limit: int = 160) -> str:
    """Return ``text`` on one line, cut at ``limit``, with control characters made visible."""
    return show(text, limit)


def state_of(record: Record, now: int) -> str:
    """Return the record's state as pages name it. A claim whose lease has ended is lapsed, not running."""
    if record.state == "claimed" and (record.lease_until or 0) <= now:
        return "lapsed"
    return STATES[record.state]


def body(stored: bytes | None) -> str:
    """Return a stored result or request as text."""
    if stored is None:
        return ""
    if stored[:1] == SEALED:
        return f"sealed: {len(stored)} bytes that only the program with the secret can read"
    stored, _ = without_trace(stored)
    if stored[:1] == VERSION:
        return as_json(stored[1:])
    return plain(stored)


def brief(stored: bytes | None) -> str:
    """Return the result of a saga's step, on one line."""
    if stored is None or stored[:1] != VERSION:
        return body(stored)
    return line(stored[1:].decode("utf-8", "replace"), 200)


def as_json(stored: bytes) -> str:
    """Return JSON with indentation; other bytes as `plain` shows them."""
    try:
        return _cut(msgspec.json.format(stored, indent=2).decode())
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return plain(stored)


def plain(stored: bytes) -> str:
    """Return bytes as text; as hexadecimal digits where they are not UTF-8."""
    try:
        return _cut(stored.decode())
    except UnicodeDecodeError:
        return _cut(stored.hex(" ", 4))


def _cut(text: str) -> str:
    """Cut long text, and make control characters visible."""
    if len(text) > MAX_TEXT_CHARACTERS:
        text = f"{text[:MAX_TEXT_CHARACTERS]}\n… {len(text) - MAX_TEXT_CHARACTERS} characters more"
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape", "replace").decode() for c in text)


def failure(record: Record) -> tuple[str, str]:
    """Return the code or class of a failed record's error, and the error's text."""
    if record.error == EXHAUSTED:
        return "attempts-exhausted", "every allowed attempt was used without a recorded success"
    if record.error is not None and record.error[:1] == SEALED:
        return "sealed", ""
    try:
        error = decode_error(record.error)
    except CorruptRecord as broken:
        return "unreadable", show(broken, 300)
    return error.type.rpartition(":")[2] or error.code, show(error.message, 1000)


def clock(at: int | None) -> str:
    """Format a time of the store, in UTC."""
    if not at:
        return ""
    try:
        return datetime.fromtimestamp(at / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return show(at)


def moment(at: int) -> str:
    """Format a time of the store to the millisecond, in UTC: several things may happen in one second."""
    return f"{clock(at)}.{at // 1000 % 1000:03}"


def ago(at: int | None, now: int | None = None) -> str:
    """Format how long ago ``at`` was, or in how long it will be, in one unit."""
    if not at:
        return ""
    span = (round(time.time() * 1e6) if now is None else now) - at
    text = age(abs(span))
    return f"{text} ago" if span >= 0 else f"in {text}"


def age(span: float) -> str:
    """Format a span in microseconds, roughly."""
    seconds = span / 1e6
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    if seconds >= 1:
        return f"{seconds:.0f} s"
    return f"{seconds * 1000:.0f} ms" if seconds >= 0.001 else "0 s"


def count(number: int | None, cap: int | None = None) -> str:
    """Format a count; one that has reached ``cap``, where the store stops counting, gets a plus."""
    if number is None:
        return "?"
    return f"{number:,}+" if cap is not None and number >= cap else f"{number:,}"


FILTERS: dict[str, Any] = {
    "line": line,
    "clock": clock,
    "moment": moment,
    "ago": ago,
    "age": age,
    "count": count,
    "state_of": state_of,
}
