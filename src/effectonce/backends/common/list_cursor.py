"""The cursor of a list of records by scope and key, or by their last change."""

from __future__ import annotations

from typing import Final

from effectonce.values.cursors import CursorNumber, read_cursor, write_cursor

#: The last record before a page: its ``changed_at`` (0 in a list by scope and key), its scope and its key.
ListPosition = tuple[CursorNumber, str, str]

MAX_SORTED_RECORDS: Final = 50_000
"""The most records that a store sorts by their last change for one page."""


def make_cursor(changed_at: int, scope: str, key: str) -> str:
    return write_cursor(_listing(by_change=changed_at > 0), (changed_at, scope, key))


def parse_cursor(cursor: str, *, by_change: bool) -> ListPosition:
    """Parse the cursor of a list by the last change (``by_change``), or by scope and key. Raises `InvalidOption` for
    any other text."""
    position: ListPosition = read_cursor(cursor, _listing(by_change=by_change), ListPosition)
    return position


def _listing(*, by_change: bool) -> str:
    return "records by change" if by_change else "records by key"
