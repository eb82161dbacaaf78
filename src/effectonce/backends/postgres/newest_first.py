"""Lists by the last change. No index has that order, which would cost every claim and completion: a page sorts up to
`MAX_SORTED_RECORDS` records, found by the indexes that there are."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from effectonce.backends.common.list_cursor import MAX_SORTED_RECORDS, make_cursor, parse_cursor
from effectonce.backends.common.sql_store import record_from
from effectonce.record import Page, Query

from .client import NamedRow
from .codec import int4, int8, utf8

_LATEST_TIME_US: Final = (1 << 63) - 1


async def list_newest_first(send: Callable[..., Awaitable[Sequence[NamedRow]]], query: Query) -> Page:
    """List one page. ``send`` runs a statement by its name.

    A scope with too many records is looked for among those of all scopes that expire last: in one scope, which has one
    retention, those are the newest.
    """
    if query.unfinished:
        walk = "newest_unfinished"
    elif query.state in ("free", "failed", "in_doubt"):
        walk = "newest_attention"
    else:
        walk = "newest_recent" if query.scope is None else "newest_of_scope"
    page = await _list_sorted(send, walk, query)
    if page.partial and walk == "newest_of_scope":
        recent = await _list_sorted(send, "newest_recent", query)
        return Page(recent.records, recent.cursor, partial=True)
    return page


async def _list_sorted(send: Callable[..., Awaitable[Sequence[NamedRow]]], walk: str, query: Query) -> Page:
    start = (_LATEST_TIME_US, "", "") if query.cursor is None else parse_cursor(query.cursor, by_change=True)
    rows = await send(  # $1 to $8 of `newest` in records.sql
        walk,
        None if query.scope is None else utf8(query.scope),
        None if query.state is None else query.state.encode(),
        utf8(query.key_contains),
        int8.pack(start[0]),
        utf8(start[1]),
        utf8(start[2]),
        int4.pack(query.limit + 1),
        int4.pack(MAX_SORTED_RECORDS + 1),
    )
    is_partial = rows[0]["sorted_count"] > MAX_SORTED_RECORDS
    records = [record_from(row) for row in rows if row["scope"] is not None]
    page, has_more = records[: query.limit], len(records) > query.limit
    cursor = make_cursor(page[-1].changed_at, page[-1].scope, page[-1].key) if has_more else None
    return Page(page, cursor, is_partial)
