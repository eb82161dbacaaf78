"""The outbox in PostgreSQL, as a relay uses it. The statements are in ``backends/postgres/outbox.sql``.

Every statement commits by itself: none leaves a transaction open while the relay publishes (F47). A lease or a
settlement whose reply is lost may be repeated: by its owner it gets the same rows, or changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from operator import attrgetter
from typing import Final

from effectonce.contracts.outbox import (
    BLOCKED_ROW_RECHECK_US,
    COLUMN_WORDS,
    COUNT_LIMIT,
    CleanupResult,
    LeasedRows,
    LeaseRequest,
    OutboxBacklog,
    OutboxMatches,
    OutboxPage,
    OutboxRow,
    OutboxState,
    RowOutcome,
    build_backlog,
    build_matches,
    build_page,
    notify_channel,
    parse_cursor,
)
from effectonce.core.sql_files import CLOCK_EXPRESSIONS, inbox_statements, outbox_words, read_statements
from effectonce.values.key_term import KeyTerm

from .client import Param, PostgresClient, Row, Statement
from .codec import bigint_array, boolean, int4, int8, integer_array, text_array, utf8

MAX_FREED_ROWS: Final = 10_000  # rows behind unparked ones that become due at once
#: The file also names parts of statements, which are not sent by themselves.
STATEMENT_PARTS: Final = ("fresh", "taking")
#: `lease_in_order` returns one row that is not a message: its number of attempts is negative, and its ``seq`` is where
#: the next page begins. With this number of attempts there may be more rows to read.
MORE_TO_READ: Final = -2


class PostgresOutbox:
    """See `contracts.OutboxPort`. It has one `PostgresClient`, and one statement in flight at a time."""

    def __init__(self, client: PostgresClient, table: str, prefix: str) -> None:
        self.table = table
        self._client = client
        self.statements = _outbox_statements(table, prefix)
        self._inbox = f'"{prefix}_inbox"'.encode()
        self._channel = notify_channel(table).encode()
        self._cleaned = f"cleaned {table}".encode()

    async def lease(self, lease: LeaseRequest) -> LeasedRows:
        params: list[Param] = [
            lease.owner,
            int8.pack(lease.lease_us),
            int4.pack(lease.limit),
            int8.pack(lease.after),
            int4.pack(lease.take or lease.limit),
            text_array(lease.without),
        ]
        if lease.ordered:
            params.append(int8.pack(BLOCKED_ROW_RECHECK_US))
        rows = await self._client.execute(self.statements["lease_in_order" if lease.ordered else "lease"], params)
        leased = LeasedRows([])
        for row in sorted((OutboxRow(*row) for row in rows), key=attrgetter("seq")):
            if row.attempts >= 0:
                leased.rows.append(row)
            else:
                leased.after, leased.more = row.seq, row.attempts == MORE_TO_READ
        return leased

    async def settle(self, owner: bytes, outcomes: Sequence[RowOutcome], keep_us: int) -> int:
        published = [outcome.seq for outcome in outcomes if outcome.state == "published"]
        others = [outcome for outcome in outcomes if outcome.state != "published"]
        params = [
            owner,
            bigint_array(published),
            int8.pack(keep_us),
            bigint_array([outcome.seq for outcome in others]),
            text_array([outcome.state for outcome in others]),
            bigint_array([outcome.wait_us for outcome in others]),
            integer_array([outcome.refund for outcome in others]),
            text_array([outcome.error for outcome in others]),
        ]
        ((applied,),) = await self._client.execute(self.statements["settle"], params)
        return int(applied)

    async def wait(self, timeout: float) -> bool:
        return bool(await self._client.notifications(self._channel, timeout))

    # -- for operators and the clean-up

    async def unpark(self, seqs: Sequence[int] | None, limit: int, *, discard: bool = False) -> int:
        chosen = None if seqs is None else bigint_array(seqs)
        limits = int4.pack(limit), int4.pack(MAX_FREED_ROWS)
        ((count,),) = await self._query("unpark", chosen, boolean.pack(discard), *limits)
        return int(count)

    async def list(self, state: OutboxState, limit: int, cursor: str | None = None) -> OutboxPage:
        due_at, seq = parse_cursor(cursor)
        rows = await self._query("list", utf8(state), int8.pack(due_at), int8.pack(seq), int4.pack(limit + 1))
        return build_page(rows, limit)

    async def find(self, term: KeyTerm, recent: int, limit: int) -> OutboxMatches:
        sizes = int4.pack(recent), int4.pack(limit)
        ranges = [await self._query("find", utf8(first), utf8(end), *sizes) for first, end in term.ranges]
        ((count,),) = await self._query("count_up_to", int4.pack(recent + 1))
        return build_matches(ranges, count <= recent, limit)

    async def stats(self) -> OutboxBacklog:
        return build_backlog(await self._query("stats", int4.pack(COUNT_LIMIT), self._cleaned))

    async def clean(self, limit: int) -> CleanupResult:
        ((published, more),) = await self._query("clean", int4.pack(limit))
        inbox = await self._clean_inbox(limit)
        if not more and inbox < limit:
            await self._query("cleaned", self._cleaned)
        return CleanupResult(published, inbox, more or inbox == limit)

    async def _clean_inbox(self, limit: int) -> int:
        if not (await self._query("has_inbox", self._inbox))[0][0]:
            return 0
        await self._query("purge_attempts", int8.pack(limit))
        return len(await self._query("purge", int8.pack(limit)))

    async def check(self) -> None:
        await self._query("probe")
        await self._client.check(self.statements["denied"])

    async def close(self) -> None:
        await self._client.close()

    async def _query(self, name: str, *params: Param) -> Sequence[Row]:
        return await self._client.execute(self.statements[name], params, prepare=False)


@cache
def _outbox_statements(table: str, prefix: str) -> dict[str, Statement]:
    words = {**outbox_words("postgresql", table), **COLUMN_WORDS}
    meta = f'"{prefix}_meta"'
    outbox = read_statements("backends/postgres/outbox.sql", meta=meta, now=CLOCK_EXPRESSIONS["postgresql"], **words)
    inbox = inbox_statements("postgresql", f"{prefix}_inbox")
    purges = {name: inbox[name] for name in ("purge", "purge_attempts")}
    return {name: Statement(sql) for name, sql in {**outbox, **purges}.items() if name not in STATEMENT_PARTS}
