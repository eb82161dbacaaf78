"""Parses and formats durations, as code and designs write them."""

from __future__ import annotations

import re

_UNIT_SECONDS = {
    "ms": 0.001,
    "s": 1,
    "sec": 1,
    "second": 1,
    "m": 60,
    "min": 60,
    "minute": 60,
    "h": 3600,
    "hour": 3600,
    "hr": 3600,
    "d": 86400,
    "day": 86400,
    "w": 604800,
    "week": 604800,
    "month": 2592000,
    "y": 31536000,
    "year": 31536000,
}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)?", re.IGNORECASE)
_ISO_DURATION = re.compile(r"^P(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?$")
_ISO_UNIT_SECONDS = (604800, 86400, 3600, 60, 1)


def parse_duration(text: str) -> float | None:
    """The seconds of a duration such as `30d`, `7 days`, `PT1H`, `86400`; None if it is none."""
    text = text.strip()
    if (match := _ISO_DURATION.match(text)) and any(match.groups()):
        return float(
            sum(int(part) * size for part, size in zip(match.groups(), _ISO_UNIT_SECONDS, strict=True) if part)
        )
    match = _DURATION.match(text)
    if not match:
        return None
    unit = (match.group(2) or "s").lower()
    size = _UNIT_SECONDS.get(unit) or _UNIT_SECONDS.get(unit.rstrip("s"))
    return float(match.group(1)) * size if size else None


def format_duration(value: float) -> str:
    """A number of seconds as people write it: `3 days`, `90 seconds`."""
    for size, name in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if value >= size and value % size == 0:
            count = int(value // size)
            return f"{count} {name}{'s' if count != 1 else ''}"
    return f"{value:g} seconds"
