"""Lists by the last change. Redis has that order for records in doubt only, in their index; all others are found by a
SCAN of a bounded number of keys, and sorted here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from effectonce.record import Page, Query, Record
from effectonce.values.cursors import CursorDigest, CursorNumber, read_cursor, write_cursor

from .record_format import STATE_LETTERS, pack_get, parse_if_intact

if TYPE_CHECKING:
    from .port import RedisPort

SCAN_STEP_KEYS: Final = 500  # keys that one step of a SCAN visits ...
MAX_SCAN_STEPS: Final = 100  # ... and the most steps of one page that is sorted
READ_BATCH: Final = 128  # records that a list reads in one round trip

#: When a record changed last, and its digest. A page begins after one.
_Place = tuple[CursorNumber, CursorDigest]
_LISTING: Final = "newest first"


async def list_newest_first(port: RedisPort, query: Query) -> Page:
    """List one page. It may be short, since records are read one by one after they were found."""
    before: _Place | None = None if query.cursor is None else read_cursor(query.cursor, _LISTING, _Place)
    if query.state == "in_doubt":
        found, is_partial = await _find_doubts(port, query, before), False
    else:
        found, is_partial = await _find_by_scan(port, query)
    places = sorted({place for place in found if before is None or place < before}, reverse=True)
    shown = places[: query.limit]
    cursor = write_cursor(_LISTING, shown[-1]) if len(places) > len(shown) else None
    return Page(await _read_records(port, query, shown), cursor, is_partial)


async def _find_doubts(port: RedisPort, query: Query, before: _Place | None) -> list[_Place]:
    highest = "+inf" if before is None else str(before[0])
    buckets = await port.run_on_indexes(port.layout.indexes(), "newest_doubts", highest, query.limit + 1)
    return [
        (int(float(score)), digest)
        for members in buckets
        for digest, score in zip(members[::2], members[1::2], strict=True)
    ]


async def _find_by_scan(port: RedisPort, query: Query) -> tuple[list[_Place], bool]:
    """Find records by a SCAN. Returns them, and whether there are keys that it did not visit."""
    filters = (STATE_LETTERS[query.state] if query.state is not None else "", query.scope or "", query.key_contains)
    found: list[_Place] = []
    steps = 0
    for node in await port.connection.nodes():
        cursor = "0"
        while True:
            if steps == MAX_SCAN_STEPS:
                return found, True
            steps += 1
            step = ("newest", cursor, port.layout.pattern, SCAN_STEP_KEYS, *filters)
            next_cursor, *keys = await port.run_on_node(node, *step)
            found += [(int(changed), key[-32:]) for key, changed in zip(keys[::2], keys[1::2], strict=True)]
            cursor = next_cursor.decode()
            if cursor == "0":
                break
    return found, False


async def _read_records(port: RedisPort, query: Query, places: Iterable[_Place]) -> list[Record]:
    names = [port.layout.buckets[digest[0]] + digest for _, digest in places]
    arg = pack_get(STATE_LETTERS[query.state] if query.state is not None else "", query.scope or "")
    records: list[Record] = []
    for first in range(0, len(names), READ_BATCH):
        for name, fields in await port.read_fields(names[first : first + READ_BATCH], arg):
            records += parse_if_intact(name, fields)
    return [record for record in records if query.key_contains in record.key]
