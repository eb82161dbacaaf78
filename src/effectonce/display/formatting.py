"""Stored values, times and counts as text. It is bounded and has no control characters (F65: a stored value repaints
the terminal, or runs as a script)."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Final

import msgspec

from effectonce.core.codec import FORMAT_VERSION, decode_error, without_trace
from effectonce.core.privacy import SEALED_PREFIX
from effectonce.core.refusals import is_refused
from effectonce.errors import CorruptRecord, show
from effectonce.record import Record, State, Stats, is_exhausted, last_error_of
from effectonce.values.durations import format_span

MAX_TEXT_CHARACTERS: Final = 20_000

#: The word for each state of a record.
STATE_WORDS: Final[dict[State, str]] = {
    "claimed": "running",
    "done": "done",
    "failed": "failed",
    "in_doubt": "in doubt",
    "free": "released",
}
REFUSED: Final = "refused"
"""The word, and the tone, of a failed record for which `is_refused` is true."""


def format_state(record: Record, now: int) -> str:
    """Return the word for the record's state. A claim whose lease has ended is lapsed, not running; a failure that is
    the answer of a business rule is refused."""
    if record.state == "claimed" and (record.lease_until or 0) <= now:
        return "lapsed"
    return REFUSED if is_refused(record) else STATE_WORDS[record.state]


def tone_of(record: Record) -> str:
    """Return the tone in which the record's state is shown."""
    return REFUSED if is_refused(record) else record.state


def format_target(scope: str, key: str) -> str:
    """Return how messages and the audit log name a record."""
    return f"{show(scope)} {show(key)}"


def format_failure(record: Record) -> tuple[str, str]:
    """Return the code or class of a record's last error, and the error's text."""
    if is_exhausted(record.error):
        last_error = last_error_of(record.error)
        why = "every allowed attempt was used without a recorded success"
        if last_error is not None:
            why = f"{why}; the last error was {format_error(*_format_stored_error(last_error))}"
        return "attempts-exhausted", why
    return _format_stored_error(record.error)


def _format_stored_error(stored: bytes | None) -> tuple[str, str]:
    if stored is not None and stored[:1] == SEALED_PREFIX:
        return "sealed", ""
    try:
        error = decode_error(stored)
    except CorruptRecord as unreadable:
        return "unreadable", show(unreadable, 300)
    return error.type.rpartition(":")[2] or error.code, show(error.message, 1000)


def format_failure_place(record: Record) -> str:
    """Return where a record's last error was raised: the handler first, the line that raised it last; "" if that is not
    known."""
    stored = last_error_of(record.error)
    if stored is None or stored[:1] == SEALED_PREFIX:
        return ""
    try:
        return " > ".join(show(frame, 300) for frame in decode_error(stored).frames)
    except CorruptRecord:
        return ""


def format_error(kind: str, text: str) -> str:
    """Return an error on one line: its class or code, and its text."""
    return ": ".join(filter(None, (show(kind.rpartition(":")[2], 200), show(text, 1000))))


# -- stored bytes


def format_stored(stored: bytes | None) -> str:
    """Return a stored result or request as text."""
    if stored is None:
        return ""
    if stored[:1] == SEALED_PREFIX:
        return f"sealed: {len(stored)} bytes that only the program with the secret can read"
    stored, _ = without_trace(stored)
    return format_json(stored[1:]) if stored[:1] == FORMAT_VERSION else format_bytes(stored)


def format_json(text: bytes) -> str:
    """Return JSON with indentation; bytes that are not JSON as `format_bytes` does."""
    try:
        return _bound_text(msgspec.json.format(text, indent=2).decode())
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return format_bytes(text)


def format_bytes(content: bytes) -> str:
    """Return bytes as text; as hexadecimal digits if they are not UTF-8."""
    try:
        return _bound_text(content.decode())
    except UnicodeDecodeError:
        return _bound_text(content.hex(" ", 4))


def _bound_text(text: str) -> str:
    """Cut long text, and make control characters visible, except line ends."""
    if len(text) > MAX_TEXT_CHARACTERS:
        text = f"{text[:MAX_TEXT_CHARACTERS]}\n… {len(text) - MAX_TEXT_CHARACTERS} characters more"
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape", "replace").decode() for c in text)


# -- times and counts


def format_time(at: int | None) -> str:
    """Format a time in microseconds since the epoch, in UTC; "" for None and 0, which stand for never."""
    if not at:
        return ""
    try:
        return datetime.fromtimestamp(at / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return show(at)


def format_iso(at: int | None) -> str | None:
    """Format a time in microseconds since the epoch as ISO 8601, in UTC and to the millisecond. None for None, 0 and
    times beyond the calendar, which all stand for never."""
    if not at:
        return None
    try:
        return datetime.fromtimestamp(at / 1e6, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return None


def format_when(at: int | None, now: int | None = None) -> str:
    """Format a time as how long ago it was, and as ISO 8601 in UTC; "" for None and 0, which stand for never."""
    return f"{format_ago(at, now)} ({format_iso(at)})" if at else ""


def format_moment(at: int) -> str:
    """Format a time as `format_time` does, to the millisecond: several things may happen in one second."""
    return f"{format_time(at).removesuffix('Z')}.{at // 1000 % 1000:03}"


def format_near(at: int, now: int) -> str:
    """Format a time as `format_moment` does, without its date if that is the date of ``now``, else without its
    milliseconds."""
    date, _, clock = format_moment(at).partition(" ")
    return clock if date == format_time(now).partition(" ")[0] else f"{date} {clock.partition('.')[0]}"


def format_ago(at: int | None, now: int | None = None) -> str:
    """Format how long ago ``at`` was, or how far it is ahead, in one unit."""
    if not at:
        return ""
    span_us = (round(time.time() * 1e6) if now is None else now) - at
    text = format_span(abs(span_us))
    return f"{text} ago" if span_us >= 0 else f"in {text}"


def format_count(number: int | None, cap: int | None = None) -> str:
    """Format a count; one that has reached ``cap``, where the store stops counting, gets a plus."""
    if number is None:
        return "?"
    return f"{number:,}+" if cap is not None and number >= cap else f"{number:,}"


def format_state_count(stats: Stats, state: str) -> str:
    """Format how many records are in ``state``. A tilde says that only the newest records were counted."""
    count = format_count(stats.counts.get(state, 0), stats.cap)
    return f"~{count}" if state in stats.approximate else count
