"""The relay's side of an outbox in MySQL and MariaDB. Its statements are in ``backends/mysql/outbox.sql``.

A lease is one short transaction of two packets: look for rows and lock them, then take those whose turn it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from zlib import crc32

from effectonce.backends.common.sql_files import fill, inbox_words, outbox_words, statements
from effectonce.contracts.outbox import (
    COUNT_LIMIT,
    CleanupResult,
    LeaseCandidate,
    LeasedRows,
    LeaseRequest,
    OutboxBacklog,
    OutboxPage,
    OutboxRow,
    OutboxState,
    RowOutcome,
    build_backlog,
    build_page,
    compute_deferrals,
    parse_cursor,
    select_in_turn,
)

from .connection import MySQLConnection, ResultRows, blob, blobs, text
from .rows import NOW, STATEMENT_BEGAN
from .schema import MySQLSchema

Results = list[ResultRows]
Packet = list[str]  # of statements; `list` is a method below

_MAX_FREED_ROWS = 10_000  # rows behind unparked ones that become due at once
_STATE_LITERALS: dict[str, str] = {state: f"'{state}'" for state in ("pending", "waiting", "parked", "published")}


class MySQLOutbox:
    """See `contracts.OutboxPort`. One connection; the same code for sync and async."""

    def __init__(self, connection: MySQLConnection, schema: MySQLSchema, table: str, prefix: str) -> None:
        self.table = table
        self._connection = connection
        self._schema = schema
        self._sql = _queries(table, prefix)
        self._inbox = text(f"{prefix}_inbox")

    async def lease(self, lease: LeaseRequest) -> LeasedRows:
        owner = blob(lease.owner)
        page = {
            "owner": owner,
            "after": f"{lease.after:d}",
            "limit": f"{lease.limit:d}",
            "place": self._sql["before"] if lease.ordered else "NULL",
            "without": f"AND p.destination NOT IN ({','.join(map(text, lease.without))})" if lease.without else "",
        }
        searches = [fill(self._sql["fresh"], **page), fill(self._sql["due"], **page)]
        _, fresh, due = await self._execute("; ".join(["BEGIN", *searches]))
        candidates = [
            LeaseCandidate(seq, line if lease.ordered else None, before) for seq, line, before in [*fresh, *due]
        ]
        turn, held = select_in_turn(candidates, lease.take or lease.limit)
        packet: Packet = []
        if held:
            packet += await self._defer_statements(held)
        if turn:
            seqs = _numbers(turn)
            packet.append(fill(self._sql["take"], owner=owner, span=f"{lease.span:d}", seqs=seqs))
            packet.append(fill(self._sql["taken"], seqs=seqs))
        results = await self._execute("; ".join([*packet, "COMMIT"]))
        rows = [OutboxRow(*row) for row in results[-2]] if turn else []
        after = fresh[-1][0] if lease.ordered and len(fresh) == lease.limit else 0
        return LeasedRows(rows, after, after > 0 or len(due) == lease.limit)

    async def _defer_statements(self, held: dict[int, int]) -> Sequence[str]:
        """The statement that makes rows wait as long as those that hold them up."""
        [holders] = await self._execute(fill(self._sql["holders"], seqs=_numbers(sorted(set(held.values())))))
        until = compute_deferrals(
            held, {seq: (state, due_at) for seq, state, due_at, _ in holders}, _server_time(holders)
        )
        if not until:
            return []
        cases = " ".join(f"WHEN {seq:d} THEN {at:d}" for seq, at in until.items())
        return [fill(self._sql["defer"], cases=cases, seqs=_numbers(sorted(until)))]

    async def settle(self, owner: bytes, outcomes: Sequence[RowOutcome], keep: int) -> int:
        words = {"owner": blob(owner), "keep": f"{keep:d}"}
        packet = ["BEGIN"]
        sent = sorted(outcome.seq for outcome in outcomes if outcome.state == "published")
        if sent:
            packet += [
                fill(self._sql["publish" if keep else "publish_and_delete"], seqs=_numbers(sent), **words),
                _COUNT_ROWS,
            ]
        rows = [
            f"SELECT {outcome.seq:d} AS seq,{_STATE_LITERALS[outcome.state]} AS state,{outcome.span:d} AS span,"
            f"{outcome.refund:d} AS refund,{'NULL' if outcome.error is None else text(outcome.error)} AS error"
            for outcome in outcomes
            if outcome.state != "published"
        ]
        if rows:
            packet += [fill(self._sql["settle"], rows=" UNION ALL ".join(rows), **words), _COUNT_ROWS]
        results = await self._execute("; ".join([*packet, "COMMIT"]))
        return sum(int(rows[0][0]) for rows in results if rows)

    async def wait(self, timeout: float) -> bool:
        return False

    # -- for operators and the clean-up

    async def unpark(self, seqs: Sequence[int] | None, limit: int, *, discard: bool = False) -> int:
        chosen = "" if seqs is None else f"AND seq IN ({_numbers(seqs) or 'NULL'})"
        _, parked = await self._execute("BEGIN; " + fill(self._sql["parked"], chosen=chosen, limit=f"{limit:d}"))
        packet = []
        if parked:
            seqs = [row[0] for row in parked]
            packet.append(fill(self._sql["discard" if discard else "unpark"], seqs=_numbers(seqs)))
            lines = {line for _, line in parked if line is not None}
            if lines:
                packet.append(fill(self._sql["follow"], lines=_numbers(sorted(lines)), limit=str(_MAX_FREED_ROWS)))
        await self._execute("; ".join([*packet, "COMMIT"]))
        return len(parked)

    async def list(self, state: OutboxState, limit: int, cursor: str | None = None) -> OutboxPage:
        due_at, seq = parse_cursor(cursor)
        words = {"state": _STATE_LITERALS[state], "due_at": f"{due_at:d}", "seq": f"{seq:d}", "limit": f"{limit + 1:d}"}
        [rows] = await self._execute(fill(self._sql["list"], **words))
        return build_page(rows, limit)

    async def stats(self) -> OutboxBacklog:
        counts = [fill(self._sql["count"], state=state, limit=str(COUNT_LIMIT)) for state in _STATE_LITERALS.values()]
        results = await self._execute("; ".join([*counts, self._sql["cleaned_at"]]))
        return build_backlog(row for rows in results for row in rows)

    async def clean(self, limit: int) -> CleanupResult:
        _, old = await self._execute("BEGIN; " + fill(self._sql["old"], limit=f"{limit + 1:d}"))
        seqs = sorted(row[0] for row in old[:limit])
        delete = [fill(self._sql["discard"], seqs=_numbers(seqs))] if seqs else []
        await self._execute("; ".join([*delete, "COMMIT"]))
        inbox = await self._clean_inbox(limit)
        more = len(old) > limit or inbox == limit
        if not more:
            await self._execute(self._sql["cleaned"])
        return CleanupResult(len(seqs), inbox, more)

    async def _clean_inbox(self, limit: int) -> int:
        [exists] = await self._execute(fill(self._sql["has_inbox"], inbox=self._inbox))
        ids: ResultRows = []
        for due, forget in (("due_attempts", "forget_attempts"), ("due", "forget_many")) if exists else ():
            _, ids = await self._execute("BEGIN; " + self._sql[f"inbox {due}"].replace("$1", f"{limit:d}"))
            delete = [fill(self._sql[f"inbox {forget}"], ids=blobs([row[0] for row in ids]))] if ids else []
            await self._execute("; ".join([*delete, "COMMIT"]))
        return len(ids)

    async def check(self) -> None:
        await self._execute(self._sql["probe"])
        await self._connection.execute(self._sql["rights"])

    async def close(self) -> None:
        await self._connection.close()

    async def _execute(self, packet: str) -> Results:
        _, is_new = await self._schema.prepare()
        if is_new:
            await self._connection.execute(self._sql["probe"])
        return await self._connection.execute(packet)


_COUNT_ROWS = "SELECT ROW_COUNT()"


def _numbers(values: Sequence[int]) -> str:
    return ",".join([f"{value:d}" for value in values])


def _server_time(holders: ResultRows) -> int:
    return int(holders[0][3]) if holders else 0


@cache
def _queries(table: str, prefix: str) -> dict[str, str]:
    """The statements by name, with everything filled in that is not a value."""
    named = statements(
        "backends/mysql/outbox.sql",
        cleaned=f"'cleaned {crc32(table.encode()):08x}'",  # the column takes 32 characters
        meta=f"`{prefix}_meta`",
        now=NOW,
        began=STATEMENT_BEGAN,
        **outbox_words("mysql", table),
    )
    inbox = statements("inbox/mysql.sql", now=STATEMENT_BEGAN, **inbox_words("mysql", f"{prefix}_inbox"))
    return {**named, **{f"inbox {name}": sql for name, sql in inbox.items()}}
