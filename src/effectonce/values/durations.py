"""Durations as users write them: ``"30s"``, ``"7d"``, a `timedelta`, or seconds."""

from __future__ import annotations

import re
from datetime import timedelta

from effectonce.errors import InvalidOption

Duration = str | timedelta | int | float

_MICROS_PER_UNIT = {"us": 1, "ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_PATTERN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(us|ms|s|m|h|d)\s*", re.ASCII)
_CENTURY_US = 100 * 365 * _MICROS_PER_UNIT["d"]


def micros(value: Duration, what: str = "duration") -> int:
    """Convert ``value`` to whole microseconds. Raises `InvalidOption` unless it is between zero and a century."""
    if isinstance(value, timedelta):
        span = value // timedelta(microseconds=1)
    elif isinstance(value, str):
        match = _PATTERN.fullmatch(value)
        if match is None:
            raise InvalidOption(f"{what}={value!r} is not a span of time; write it like '30s', '5m', '12h' or '7d'")
        span = round(float(match[1]) * _MICROS_PER_UNIT[match[2]])
    elif isinstance(value, int | float) and not isinstance(value, bool):
        span = round(value * 1_000_000) if abs(value) < _CENTURY_US else _CENTURY_US
    else:
        raise InvalidOption(f"{what}={value!r} is not a span of time; give '30s', a timedelta or seconds")
    if not 0 < span < _CENTURY_US:
        raise InvalidOption(f"{what}={value!r} must be more than zero and less than a century")
    return span


def span_text(span_us: int) -> str:
    """Format a span in microseconds as users write it: ``15d``, ``1.5h``, ``30s``."""
    for unit in ("d", "h", "m", "s", "ms"):
        if span_us >= _MICROS_PER_UNIT[unit]:
            return f"{span_us / _MICROS_PER_UNIT[unit]:.3g}{unit}"
    return f"{span_us}us"


def format_span(span_us: float) -> str:
    """Format a span in microseconds roughly, in one unit: ``12 min``, ``3 s``."""
    seconds = span_us / 1e6
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    if seconds >= 1:
        return f"{seconds:.0f} s"
    return f"{seconds * 1000:.0f} ms" if seconds >= 0.001 else "0 s"
