"""The outbox in a SQLite file, as a relay uses it. The statements are in ``backends/sqlite/outbox.sql``.

A method under `in_transaction` is one write transaction: it takes effect as a whole, or not at all. While another
connection has the write lock it is called again, so it must do nothing but its statements. One under `in_autocommit`
only reads.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, get_args

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
from effectonce.core.sql_files import inbox_statements, outbox_schema, outbox_words, read_statements
from effectonce.values.key_term import KeyTerm

from .connection import PortConnection, SQLiteConnection, in_autocommit, in_transaction, run_script

if TYPE_CHECKING:
    from .store import SQLiteStoreBackend

ResultRows = list[tuple[Any, ...]]  # `list` is a method below

_MAX_FREED_ROWS: Final = 10_000  # rows behind unparked ones that become due at once


class SQLiteOutbox:
    """See `contracts.OutboxPort`. One connection; the same code for sync and async."""

    def __init__(
        self, backend: SQLiteStoreBackend, connect: Callable[[SQLiteConnection], PortConnection], table: str
    ) -> None:
        self._backend = backend
        self.table = table
        self._cleaned_name = f"cleaned {table}"
        self.connection = connect(SQLiteConnection(backend.file, self._prepare))
        meta, self._inbox = f"{backend.prefix}_meta", f"{backend.prefix}_inbox"
        words = {**outbox_words("sqlite", table), **COLUMN_WORDS}
        self._sql = read_statements("backends/sqlite/outbox.sql", meta=meta, **words)
        self._inbox_sql = inbox_statements("sqlite", self._inbox, now="$now")
        self._now = backend.clock.now

    def _prepare(self, cursor: sqlite3.Cursor) -> None:
        self._backend.prepare(cursor)
        try:
            cursor.execute(self._sql["probe"])
        except sqlite3.OperationalError as error:
            if "no such table" not in str(error):
                raise
            run_script(cursor, outbox_schema("sqlite", self.table))

    async def lease(self, lease: LeaseRequest) -> LeasedRows:
        # An idle relay asks without the write lock, which senders need.
        return LeasedRows([]) if await self._is_idle(lease) else await self._lease(lease)

    @in_autocommit
    def _is_idle(self, cursor: sqlite3.Cursor, lease: LeaseRequest) -> bool:
        (idle,) = cursor.execute(self._sql["idle"], _lease_values(lease, self._now())).fetchone()
        return bool(idle)

    @in_transaction
    def _lease(self, cursor: sqlite3.Cursor, lease: LeaseRequest) -> LeasedRows:
        now = self._now()
        values = {**_lease_values(lease, now), "limit": lease.limit}
        fresh = cursor.execute(self._sql["fresh"], values).fetchall()
        due = cursor.execute(self._sql["due"], values).fetchall()
        candidates = [LeaseCandidate(seq, line if lease.ordered else None, before) for seq, line, before in fresh + due]
        in_turn, blocked = select_in_turn(candidates, lease.take or lease.limit)
        if blocked:
            rows = {seq: cursor.execute(self._sql["blocker"], (seq,)).fetchone() for seq in set(blocked.values())}
            blockers = {seq: row for seq, row in rows.items() if row is not None}
            until = compute_deferrals(blocked, blockers, now)
            cursor.executemany(self._sql["defer"], [(at, seq) for seq, at in until.items()])
        take = {"owner": lease.owner, "until": now + lease.lease_us}
        leased = [OutboxRow(*cursor.execute(self._sql["take"], {**take, "seq": seq}).fetchone()) for seq in in_turn]
        after = fresh[-1][0] if lease.ordered and len(fresh) == lease.limit else 0
        return LeasedRows(leased, after, after > 0 or len(due) == lease.limit)

    @in_transaction
    def settle(self, cursor: sqlite3.Cursor, owner: bytes, outcomes: Sequence[RowOutcome], keep_us: int) -> int:
        now = self._now()
        applied = 0
        for outcome in outcomes:
            values: dict[str, Any] = {"seq": outcome.seq, "owner": owner, "now": now, "keep": keep_us}
            name = "publish" if keep_us else "publish_and_delete"
            if outcome.state != "published":
                name = "settle"
                values["state"], values["refund"], values["error"] = outcome.state, outcome.refund, outcome.error
                values["due_at"] = now + outcome.wait_us if outcome.state == "waiting" else 0
            applied += cursor.execute(self._sql[name], values).rowcount
        return applied

    async def wait(self, timeout: float) -> bool:  # SQLite announces nothing
        return False

    # -- for operators and the clean-up

    @in_transaction
    def unpark(self, cursor: sqlite3.Cursor, seqs: Sequence[int] | None, limit: int, *, discard: bool = False) -> int:
        chosen = None if seqs is None else json.dumps(list(seqs))
        parked = cursor.execute(self._sql["parked"], {"seqs": chosen, "limit": limit}).fetchall()
        cursor.executemany(self._sql["discard" if discard else "unpark"], [(seq,) for seq, _ in parked])
        lines = {line for _, line in parked if line is not None}
        cursor.executemany(self._sql["follow"], [(self._now(), line, _MAX_FREED_ROWS) for line in lines])
        return len(parked)

    async def list(self, state: OutboxState, limit: int, cursor: str | None = None) -> OutboxPage:
        values = (state, *parse_cursor(cursor), limit + 1)
        return build_page(await self.connection.execute(lambda cursor: self._fetch(cursor, "list", values)), limit)

    def _fetch(self, cursor: sqlite3.Cursor, name: str, values: tuple[Any, ...]) -> ResultRows:
        return cursor.execute(self._sql[name], values).fetchall()

    @in_autocommit
    def find(self, cursor: sqlite3.Cursor, term: KeyTerm, recent: int, limit: int) -> OutboxMatches:
        sizes = {"recent": recent, "limit": limit}
        ranges = [
            cursor.execute(self._sql["find"], {"first": first, "end": end, **sizes}).fetchall()
            for first, end in term.ranges
        ]
        ((count,),) = self._fetch(cursor, "count_up_to", (recent + 1,))
        return build_matches(ranges, count <= recent, limit)

    @in_autocommit
    def stats(self, cursor: sqlite3.Cursor) -> OutboxBacklog:
        counts = [(state, *self._fetch(cursor, "count", (state, COUNT_LIMIT))[0]) for state in get_args(OutboxState)]
        cleaned = self._fetch(cursor, "read_meta", (self._cleaned_name,))
        return build_backlog([*counts, *(("cleaned", 0, at) for (at,) in cleaned)])

    @in_transaction
    def clean(self, cursor: sqlite3.Cursor, limit: int) -> CleanupResult:
        now = self._now()
        old = self._fetch(cursor, "old", (now, limit + 1))
        cursor.executemany(self._sql["discard"], old[:limit])
        inbox = self._clean_inbox(cursor, now, limit)
        more = len(old) > limit or inbox == limit
        if not more:
            cursor.execute(self._sql["write_meta"], (self._cleaned_name, now))
        return CleanupResult(len(old[:limit]), inbox, more)

    def _clean_inbox(self, cursor: sqlite3.Cursor, now: int, limit: int) -> int:
        if not self._fetch(cursor, "has_inbox", (self._inbox,)):
            return 0
        values = {"now": now, "1": limit}
        cursor.execute(self._inbox_sql["purge_attempts"], values).fetchall()
        return len(cursor.execute(self._inbox_sql["purge"], values).fetchall())

    @in_transaction
    def check(self, cursor: sqlite3.Cursor) -> None:
        """Open the file, and take its write lock for a moment."""
        cursor.execute(self._sql["probe"])

    async def close(self) -> None:
        await self.connection.close()


def _lease_values(lease: LeaseRequest, now: int) -> dict[str, Any]:
    return {"after": lease.after, "now": now, "owner": lease.owner, "without": json.dumps(lease.without)}
