"""The cursor of a list of records: where the next page begins, as text."""

from __future__ import annotations

import re
from typing import Final

from effectonce.errors import InvalidOption

#: The last record before a page: its ``changed_at`` (0 in a list by scope and key), its scope and its key.
ListPosition = tuple[int, str, str]

MAX_SORTED_RECORDS: Final = 50_000
"""The most records that a store sorts by their last change for one page."""

#: `ListPosition` as text: changed_at, the length of the scope, and the scope and the key without a separator.
_CURSOR: Final = re.compile(r"([0-9]{1,18}):([0-9]{1,9}):(.*)", re.DOTALL)


def make_cursor(changed_at: int, scope: str, key: str) -> str:
    return f"{changed_at}:{len(scope)}:{scope}{key}"


def parse_cursor(cursor: str, *, by_change: bool) -> ListPosition:
    """Parse the cursor of a list by the last change (``by_change``), or by scope and key. Raises `InvalidOption` for
    any other text."""
    match = _CURSOR.fullmatch(cursor)
    if match is not None:
        changed_at, length, text = int(match[1]), int(match[2]), match[3]
        is_text = length <= len(text) and not any("\ud800" <= char <= "\udfff" for char in text)
        if is_text and (changed_at > 0) == by_change:
            return changed_at, text[:length], text[length:]
    raise InvalidOption("this cursor was not made by this list; start again without one")
