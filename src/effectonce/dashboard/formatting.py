"""Stored values as pages show them: always text, bounded, nothing that a page would obey (F65)."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import msgspec

from effectonce.core.codec import VERSION, decode_error, without_trace
from effectonce.core.privacy import VERSION as SEALED
from effectonce.errors import CorruptRecord, show
from effectonce.record import EXHAUSTED, Record

LONGEST = 20_000

STATES = {"claimed": "running", "done": "done", "failed": "failed", "in_doubt": "in doubt", "free": "free"}


def line(text: object, limit: int = 160) -> str:
    """One line, bounded, control characters made visible."""
    return show(text, limit)


def state_of(record: Record, now: int) -> str:
    """The record's state in words; a claim whose lease has ended is not running."""
    if record.state == "claimed" and (record.lease_until or 0) <= now:
        return "lapsed"
    return STATES[record.state]


def body(stored: bytes | None) -> str:
    """What a stored result or error holds, as text."""
    if stored is None:
        return ""
    if stored[:1] == SEALED:
        return f"sealed: {len(stored)} bytes that only the program with the secret can read"
    stored, _ = without_trace(stored)
    if stored[:1] == VERSION:
        return as_json(stored[1:])
    return plain(stored)


def brief(stored: bytes | None) -> str:
    """What a step of a saga gave, on one line."""
    if stored is None or stored[:1] != VERSION:
        return body(stored)
    return line(stored[1:].decode("utf-8", "replace"), 200)


def as_json(stored: bytes) -> str:
    try:
        return _cut(msgspec.json.format(stored, indent=2).decode())
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return plain(stored)


def plain(stored: bytes) -> str:
    """Bytes as text; as hexadecimal digits where they are none."""
    try:
        return _cut(stored.decode())
    except UnicodeDecodeError:
        return _cut(stored.hex(" ", 4))


def _cut(text: str) -> str:
    kept = text if len(text) <= LONGEST else f"{text[:LONGEST]}\n… {len(text) - LONGEST} characters more"
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape", "replace").decode() for c in kept)


def failure(record: Record) -> tuple[str, str]:
    """What a failed record failed with: its code or class, and its text."""
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
    """A time of the store, in UTC."""
    if not at:
        return ""
    try:
        return datetime.fromtimestamp(at / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return show(at)


def moment(at: int) -> str:
    """A time of the store to the millisecond, in UTC: several things may happen in one second."""
    return f"{clock(at)}.{at // 1000 % 1000:03}"


def ago(at: int | None, now: int | None = None) -> str:
    """How long since ``at``, or until it, in one unit."""
    if not at:
        return ""
    span = (round(time.time() * 1e6) if now is None else now) - at
    text = age(abs(span))
    return f"{text} ago" if span >= 0 else f"in {text}"


def age(span: float) -> str:
    """A span in microseconds, roughly."""
    seconds = span / 1e6
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 1 else "0 s" if seconds < 0.001 else f"{seconds * 1000:.0f} ms"


def count(number: int | None, cap: int | None = None) -> str:
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
