"""The outbox in MySQL and MariaDB, as a relay uses it. The statements are in ``backends/mysql/outbox.sql``.

A lease is one short transaction of two packets: the first looks for rows and locks them, the second takes those whose
turn it is. Whatever breaks off in between, an error or the process, closes the connection, and the server rolls back.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final, get_args
from zlib import crc32

from effectonce.contracts.outbox import (
    COLUMN_WORDS,
    COUNT_LIMIT,
    CleanupResult,
    LeaseCandidate,
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
    compute_deferrals,
    parse_cursor,
    select_in_turn,
)
from effectonce.core.sql_files import fill, inbox_statements, outbox_words, read_statements
from effectonce.values.key_term import KeyTerm

from .connection import ResultRows
from .literals import bind, text_literal
from .statements import NOW_SQL, STATEMENT_BEGAN_SQL
from .tables import MySQLTables

SqlPacket = list[str]  # the statements of one packet; inside of the class, `list` is a method

MAX_FREED_ROWS: Final = 10_000  # rows behind unparked ones that become due at once
_STATE_LITERALS: Final[dict[str, str]] = {state: f"'{state}'" for state in get_args(OutboxState)}
_COUNT_ROWS: Final = "SELECT ROW_COUNT()"


class MySQLOutbox:
    """See `contracts.OutboxPort`. One connection; the same code for sync and async."""

    def __init__(self, tables: MySQLTables, table: str, prefix: str) -> None:
        self.table = table
        self.tables = tables
        self._sql = outbox_statements(table, prefix)
        self._inbox = f"{prefix}_inbox"

    async def lease(self, lease: LeaseRequest) -> LeasedRows:
        parts = {
            "before_or_null": self._sql["before"] if lease.ordered else "NULL",
            "without": bind("AND p.destination NOT IN ({without})", without=lease.without) if lease.without else "",
        }
        searches = [
            bind(fill(self._sql[name], **parts), owner=lease.owner, after=lease.after, limit=lease.limit)
            for name in ("fresh", "due")
        ]
        _, fresh, due = await self.tables.execute("; ".join(["BEGIN", *searches]))
        candidates = [
            LeaseCandidate(seq, line if lease.ordered else None, before) for seq, line, before in [*fresh, *due]
        ]
        in_turn, blocked = select_in_turn(candidates, lease.take or lease.limit)
        packet: SqlPacket = []
        if blocked:
            packet += await self._defer_statements(blocked)
        if in_turn:
            packet.append(bind(self._sql["take"], owner=lease.owner, span=lease.lease_us, seqs=in_turn))
            packet.append(bind(self._sql["leased"], seqs=in_turn))
        results = await self.tables.execute("; ".join([*packet, "COMMIT"]))
        rows = [OutboxRow(*row) for row in results[-2]] if in_turn else []
        after = fresh[-1][0] if lease.ordered and len(fresh) == lease.limit else 0
        return LeasedRows(rows, after, after > 0 or len(due) == lease.limit)

    async def _defer_statements(self, blocked: dict[int, int]) -> Sequence[str]:
        """The statement that makes blocked rows wait as long as their blockers; none where they need not."""
        [rows] = await self.tables.execute(bind(self._sql["blockers"], seqs=sorted(set(blocked.values()))))
        now = rows[0][3] if rows else 0
        until = compute_deferrals(blocked, {seq: (state, due_at) for seq, state, due_at, _ in rows}, now)
        if not until:
            return []
        cases = " ".join(f"WHEN {seq:d} THEN {at:d}" for seq, at in until.items())
        return [bind(fill(self._sql["defer"], cases=cases), seqs=sorted(until))]

    async def settle(self, owner: bytes, outcomes: Sequence[RowOutcome], keep_us: int) -> int:
        packet = ["BEGIN"]
        published = sorted(outcome.seq for outcome in outcomes if outcome.state == "published")
        if published:
            publish = self._sql["publish" if keep_us else "publish_and_delete"]
            packet += [bind(publish, seqs=published, owner=owner, keep=keep_us), _COUNT_ROWS]
        rows = [
            f"SELECT {outcome.seq:d} AS seq,{_STATE_LITERALS[outcome.state]} AS state,{outcome.wait_us:d} AS span,"
            f"{outcome.refund:d} AS refund,{text_literal(outcome.error)} AS error"
            for outcome in outcomes
            if outcome.state != "published"
        ]
        if rows:
            packet += [bind(fill(self._sql["settle"], rows=" UNION ALL ".join(rows)), owner=owner), _COUNT_ROWS]
        results = await self.tables.execute("; ".join([*packet, "COMMIT"]))
        return sum(int(rows[0][0]) for rows in results if rows)

    async def wait(self, timeout: float) -> bool:  # MySQL announces nothing
        return False

    # -- for operators and the clean-up

    async def unpark(self, seqs: Sequence[int] | None, limit: int, *, discard: bool = False) -> int:
        chosen = "" if seqs is None else bind("AND seq IN ({seqs})", seqs=seqs or None)
        _, parked = await self.tables.execute("BEGIN; " + bind(fill(self._sql["parked"], chosen=chosen), limit=limit))
        packet = []
        if parked:
            seqs = [row[0] for row in parked]
            packet.append(bind(self._sql["discard" if discard else "unpark"], seqs=seqs))
            lines = {line for _, line in parked if line is not None}
            if lines:
                packet.append(bind(self._sql["follow"], lines=sorted(lines), limit=MAX_FREED_ROWS))
        await self.tables.execute("; ".join([*packet, "COMMIT"]))
        return len(parked)

    async def list(self, state: OutboxState, limit: int, cursor: str | None = None) -> OutboxPage:
        due_at, seq = parse_cursor(cursor)
        page = fill(self._sql["list"], state=_STATE_LITERALS[state])
        [rows] = await self.tables.execute(bind(page, due_at=due_at, seq=seq, limit=limit + 1))
        return build_page(rows, limit)

    async def find(self, term: KeyTerm, recent: int, limit: int) -> OutboxMatches:
        searches = [
            bind(self._sql["find"], first=first, end=end, recent=recent, limit=limit) for first, end in term.ranges
        ]
        *ranges, counted = await self.tables.execute(
            "; ".join([*searches, bind(self._sql["count_up_to"], limit=recent + 1)])
        )
        return build_matches(ranges, counted[0][0] <= recent, limit)

    async def stats(self) -> OutboxBacklog:
        count = bind(self._sql["count"], limit=COUNT_LIMIT)
        counts = [fill(count, state=state) for state in _STATE_LITERALS.values()]
        results = await self.tables.execute("; ".join([*counts, self._sql["cleaned_at"]]))
        return build_backlog(row for rows in results for row in rows)

    async def clean(self, limit: int) -> CleanupResult:
        _, old = await self.tables.execute("BEGIN; " + bind(self._sql["old"], limit=limit + 1))
        seqs = sorted(row[0] for row in old[:limit])
        delete = [bind(self._sql["discard"], seqs=seqs)] if seqs else []
        await self.tables.execute("; ".join([*delete, "COMMIT"]))
        inbox = await self._clean_inbox(limit)
        more = len(old) > limit or inbox == limit
        if not more:
            await self.tables.execute(self._sql["cleaned"])
        return CleanupResult(len(seqs), inbox, more)

    async def _clean_inbox(self, limit: int) -> int:
        [exists] = await self.tables.execute(bind(self._sql["has_inbox"], inbox=self._inbox))
        ids: ResultRows = []
        for due, forget in (("due_attempts", "forget_attempts"), ("due", "forget_many")) if exists else ():
            _, ids = await self.tables.execute("BEGIN; " + self._sql[f"inbox {due}"].replace("$1", f"{limit:d}"))
            delete = [bind(self._sql[f"inbox {forget}"], ids=[row[0] for row in ids])] if ids else []
            await self.tables.execute("; ".join([*delete, "COMMIT"]))
        return len(ids)

    async def check(self) -> None:
        await self.tables.verify()
        await self.tables.execute(self._sql["rights"])

    async def close(self) -> None:
        await self.tables.connection.close()


@cache
def outbox_statements(table: str, prefix: str) -> dict[str, str]:
    """The statements by name, with everything filled in that is not a value."""
    named = read_statements(
        "backends/mysql/outbox.sql",
        cleaned=f"'cleaned {crc32(table.encode()):08x}'",  # the column takes 32 characters
        meta=f"`{prefix}_meta`",
        now=NOW_SQL,
        began=STATEMENT_BEGAN_SQL,
        **outbox_words("mysql", table),
        **COLUMN_WORDS,
    )
    inbox = inbox_statements("mysql", f"{prefix}_inbox", now=STATEMENT_BEGAN_SQL)
    return {**named, **{f"inbox {name}": sql for name, sql in inbox.items()}}
