"""The Retry-After header of HTTP (RFC 9110): a number of seconds, or a date.

The number may have a fraction: some servers send one, though the RFC knows whole seconds only.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

_MAX_RETRY_AFTER_S: Final = 365 * 86_400.0  # callers add it to a time, which must not overflow
_SECONDS: Final = re.compile(r"\d+(\.\d+)?", re.ASCII)


def parse_retry_after(header: str) -> float | None:
    """Parse a Retry-After header into seconds from now, at most a year. None: it is neither a number nor a date."""
    text = header.strip()
    if _SECONDS.fullmatch(text):
        return min(float(text), _MAX_RETRY_AFTER_S)
    from email.utils import parsedate_to_datetime  # only dates need it, and importing effectonce should stay fast

    try:
        when = parsedate_to_datetime(text)
    except ValueError:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return min(max(0.0, (when - datetime.now(UTC)).total_seconds()), _MAX_RETRY_AFTER_S)
