"""The cursor of a list: where its next page begins, as text that operators and programs hand back.

Every list of records, inbox rows and outbox rows writes and reads its cursors here. A cursor names its list, so that
one of another list is refused instead of skipping rows.
"""

from __future__ import annotations

import base64
from typing import Annotated, Any

from msgspec import Meta, MsgspecError, json

from effectonce.errors import InvalidOption

CursorNumber = Annotated[int, Meta(ge=0, lt=10**18)]
"""A time in microseconds, or the number of a row: it fits into an integer of every database."""
CursorText = Annotated[str, Meta(pattern=r"\A[^\x00]*\Z")]
"""A scope or a key without a NUL, which PostgreSQL refuses."""
CursorDigest = Annotated[bytes, Meta(min_length=32, max_length=32)]
"""The SHA-256 of an identity, as stores that key on it have it."""


def write_cursor(listing: str, position: Any) -> str:
    """Make the cursor of the list ``listing`` for ``position``, which may hold numbers, texts, bytes and tuples of
    these."""
    return base64.urlsafe_b64encode(json.encode((listing, position))).decode().rstrip("=")


def read_cursor(cursor: str, listing: str, position_type: Any) -> Any:
    """Return the position in ``cursor``, of type ``position_type``. Raises `InvalidOption` for any text that
    `write_cursor` did not make for this list."""
    try:
        written = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        name, position = json.decode(written, type=tuple[str, position_type])
    except (MsgspecError, ValueError):
        name, position = "", None
    if name != listing:
        raise InvalidOption("this cursor was not made by this list; start again without one")
    return position
