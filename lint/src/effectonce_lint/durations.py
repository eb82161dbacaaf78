"""Parses and formats durations, as code and designs write them."""

from __future__ import annotations

import re

_UNITS = {
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
_ISO = re.compile(r"^P(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?$")


def parse_duration(text: str) -> float | None:
    """A duration as people write it: `30d`, `7 days`, `PT1H`, `86400`."""
    text = text.strip()
    if (found := _ISO.match(text)) and any(found.groups()):
        sizes = (604800, 86400, 3600, 60, 1)
        return float(sum(int(part) * size for part, size in zip(found.groups(), sizes, strict=True) if part))
    found = _DURATION.match(text)
    if not found:
        return None
    unit = (found.group(2) or "s").lower()
    size = _UNITS.get(unit) or _UNITS.get(unit.rstrip("s"))
    return float(found.group(1)) * size if size else None


def format_duration(value: float) -> str:
    """A number of seconds, for a person."""
    for size, name in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if value >= size and value % size == 0:
            count = int(value // size)
            return f"{count} {name}{'s' if count != 1 else ''}"
    return f"{value:g} seconds"
