"""Reading records of a SQLite file for operators: one record, pages of records, counts per state."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, Final

from effectonce.backends.common.list_cursor import MAX_SORTED_RECORDS, ListPosition, make_cursor, parse_cursor
from effectonce.backends.common.sql_store import record_from_values
from effectonce.errors import InvalidOption
from effectonce.record import Page, Query, Record, Stats

MAX_COUNT: Final = 100_000  # the most that `stats` counts of one state
MAX_PAGE_VISITS: Final = 5_000  # the most rows that one page of `list` reads
MAX_STATS_VISITS: Final = 1_000_000  # the most rows that `stats` reads for claimed and done
_MIN_INTEGER, _MAX_INTEGER = -(1 << 63), (1 << 63) - 1  # SQLite's smallest and largest integers
_AFTER_ALL_TEXTS: Final = b""  # to SQLite, a blob sorts after every text
NEEDS_ATTENTION: Final = ("failed", "free", "in_doubt")  # the states with an index of their own
OTHER_STATES: Final = ("claimed", "done")


class RecordReader:
    """Runs the read-only statements of the port. Each method takes the cursor of an open connection.

    A page walks an index from a position for at most `MAX_PAGE_VISITS` rows. Where that is not the whole index, the
    *edge* is the position at which the walk ends; the next page may start from there.
    """

    def __init__(self, statements: dict[str, str], now: Callable[[], int]) -> None:
        self._sql = statements
        self._now = now

    def get(self, cursor: sqlite3.Cursor, scope: str, key: str) -> Record | None:
        row = cursor.execute(self._sql["get"], (scope, key, self._now())).fetchone()
        return None if row is None else record_from_values(row)

    def page(self, cursor: sqlite3.Cursor, query: Query) -> Page:
        """One page. Failed, free and in_doubt records are listed by their last change, newest first; others by scope
        and key, which a sweep never changes, or sorted where the query wants the newest first."""
        position = _position_of(query)
        if _has_index_by_change(query):
            return self._page_by_change(cursor, query, position)
        if query.newest_first:
            return self._page_of_sorted(cursor, query, position)
        return self._page_by_key(cursor, query, position)

    def _page_by_change(self, cursor: sqlite3.Cursor, query: Query, position: ListPosition | None) -> Page:
        start, end = position or (_MAX_INTEGER, "", ""), (_MIN_INTEGER, "", "")
        edge = cursor.execute(self._sql["edge_attention"], (query.state, *start, MAX_PAGE_VISITS - 1)).fetchone()
        filters = (query.scope, query.scope, query.key_contains, self._now())
        values = (query.state, *start, *(edge or end), *filters, query.limit + 1)
        return _page_of(cursor.execute(self._sql["page_attention"], values).fetchall(), query.limit, edge)

    def _page_of_sorted(self, cursor: sqlite3.Cursor, query: Query, position: ListPosition | None) -> Page:
        """A page of at most `MAX_SORTED_RECORDS` rows, sorted by their last change: those of the scope, or the last
        ones to expire if there are too many or none is named."""
        which = "unfinished" if query.unfinished else "all" if query.scope is None else "of_scope"
        most = {"scope": query.scope, "most": MAX_SORTED_RECORDS}
        is_partial = cursor.execute(self._sql[f"has_more_{which}"], most).fetchone() is not None
        if is_partial and which == "of_scope":
            which = "all"
        changed_at, scope, key = position or (_MAX_INTEGER, "", "")
        values = {
            **most,
            "state": query.state,
            "key_contains": query.key_contains,
            "now": self._now(),
            "changed_at": changed_at,
            "scope_before": scope,
            "key_before": key,
            "size": query.limit + 1,
        }
        rows = cursor.execute(self._sql[f"newest_{which}"], values).fetchall()
        page = _page_of(rows, query.limit, None)
        return Page(page.records, page.cursor, is_partial)

    def _page_by_key(self, cursor: sqlite3.Cursor, query: Query, position: ListPosition | None) -> Page:
        start = position[1:] if position is not None else query.after or (query.scope or "", "")
        end = (_AFTER_ALL_TEXTS if query.scope is None else query.scope, _AFTER_ALL_TEXTS)
        which = "unfinished" if query.unfinished else "others"
        edge = cursor.execute(self._sql[f"edge_{which}"], (*start, *end, MAX_PAGE_VISITS - 1)).fetchone()
        values = (*start, *(edge[1:] if edge else end), query.state, query.state, self._now(), query.limit + 1)
        return _page_of(cursor.execute(self._sql[f"page_{which}"], values).fetchall(), query.limit, edge)

    def stats(self, cursor: sqlite3.Cursor) -> Stats:
        """Failed, free and in_doubt are counted by their index; claimed and done among the `MAX_STATS_VISITS` rows that
        expire last."""
        now = self._now()

        def value_of(name: str, *values: object) -> Any:
            row = cursor.execute(self._sql[name], values).fetchone()
            return row[0] if row is not None else None

        edge = value_of("edge_recent", MAX_STATS_VISITS)
        counts = {
            state: value_of("count_recent", _MIN_INTEGER if edge is None else edge, state, now, MAX_COUNT)
            for state in OTHER_STATES
        }
        counts.update({state: value_of("count_attention", state, now, MAX_COUNT) for state in NEEDS_ATTENTION})
        return Stats(
            counts=counts,
            cap=MAX_COUNT,
            oldest_in_doubt=value_of("oldest_in_doubt"),
            swept_at=value_of("read_meta", "swept_at"),
            approximate=() if edge is None else tuple(state for state in OTHER_STATES if counts[state] < MAX_COUNT),
        )


def _page_of(rows: Sequence[tuple[Any, ...]], limit: int, edge: ListPosition | None) -> Page:
    """Make a page of rows, each a position and then a record's columns. The next page starts after the last row of this
    one, or after the edge where this one is not full."""
    last = rows[limit - 1] if len(rows) > limit else edge
    cursor = None if last is None else make_cursor(*last[:3])
    return Page([record_from_values(row[3:]) for row in rows[:limit]], cursor)


def _has_index_by_change(query: Query) -> bool:
    return query.state in NEEDS_ATTENTION and not query.unfinished and query.after is None


def _position_of(query: Query) -> ListPosition | None:
    """Parse the position in a query's cursor. `InvalidOption` for a cursor of another list."""
    if query.cursor is None:
        return None
    by_change = query.newest_first or _has_index_by_change(query)
    position = parse_cursor(query.cursor, by_change=by_change)
    if not by_change and query.scope not in (None, position[1]):
        raise InvalidOption("this cursor is of another scope; start again without one")
    return position
