"""Records in MySQL >= 8.0 or MariaDB >= 10.6.

A batch of claims is one `INSERT ... ON DUPLICATE KEY UPDATE`; a batch of settlements, notes and renewals is one
`UPDATE` with a join. The same packet reads what is needed for the answers: MariaDB returns the rows of the insert
itself, MySQL reads them in the same transaction. The statements are in ``backends/mysql/records.sql``, with the
reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from effectonce.backends.common.drivers import require_driver
from effectonce.backends.common.list_cursor import MAX_SORTED_RECORDS
from effectonce.backends.common.sql_store import as_settlement, record_from_values
from effectonce.contracts import Capabilities, Dialect, InboxPort, OutboxPort, Port
from effectonce.core.sql_files import fill, store_schema, table_prefix
from effectonce.errors import ConfigurationError, StoreUnavailable, UnsafeStore
from effectonce.record import (
    Answer,
    Batchable,
    Claim,
    Figures,
    Look,
    Note,
    Page,
    Query,
    Record,
    Remember,
    Renewal,
    Reply,
    Resolution,
    Settlement,
    Stats,
    SweepResult,
)
from effectonce.values.cursors import CursorDigest, CursorNumber, read_cursor, write_cursor
from effectonce.values.identity import digest
from effectonce.values.urls import Address

from .codec import STATES, claim_row, max_packet_bytes, read_answer, remember_row, settlement_row, state_literal
from .connection import (
    AsyncMySQLConnection,
    MySQLConnection,
    MySQLOptions,
    MySQLServer,
    ResultRows,
    SyncMySQLConnection,
)
from .inbox import MySQLInbox
from .literals import LiteralValue, bind, bytes_literal
from .outbox import MySQLOutbox, outbox_statements
from .statements import load_statements, upserts_with_alias
from .tables import MySQLTables

MAX_COUNT: Final = 100_000  # the most that `stats` counts of a state
SCAN_ENTRIES: Final = 500  # index entries read in one round of a list ...
MAX_SCAN_ROUNDS: Final = 20  # ... and how many rounds it makes for one page
MIN_PACKET_BYTES: Final = 1_048_576
SWEEP_LOCKED_ROWS: Final = 100  # records that a sweep locks at a time

_LISTING: Final = "records by change"
_LAST_POSITION: Final = (1 << 62, b"\xff" * 32)
"""Behind every record: where the first page begins, as the newest come first."""

Records = list[Record]  # inside of the port, `list` is a method


class MySQLBackend:
    """The store at a mysql:// or mariadb:// URL.

    Options: ``timeout`` and ``connect_timeout`` (5s each), ``prefix`` of the tables (effectonce), ``socket`` (a Unix
    socket's path), ``returning`` (auto; off treats MariaDB as MySQL, for a proxy that does not know INSERT ...
    RETURNING); and those for TLS: ``tls``, ``ca_file``, ``cert_file``, ``key_file``, ``verify``, ``server_name``.
    """

    capabilities = Capabilities(name="mysql", notes=True)

    def __init__(self, address: Address) -> None:
        self._address = address
        self._options = MySQLOptions(address)
        self._prefix = address.take("prefix", table_prefix, "effectonce")
        self._returning = address.take("returning", {"auto": True, "off": False}.__getitem__, True)
        address.refuse_unknown_options()
        require_driver("MySQL", "mysql", "pymysql")

    def sync_port(self) -> Port:
        return self._port(SyncMySQLConnection(self._options))

    def async_port(self) -> Port:
        return self._port(self._async_connection())

    def _async_connection(self) -> AsyncMySQLConnection:
        require_driver("MySQL in async code", "mysql", "aiomysql")
        return AsyncMySQLConnection(self._options)

    def _port(self, connection: MySQLConnection) -> MySQLPort:
        return MySQLPort(MySQLTables(connection, self._address, self._prefix), self._prefix, self._returning)

    def sync_outbox(self, table: str | None = None) -> OutboxPort:
        return self._outbox(SyncMySQLConnection(self._options), table)

    def async_outbox(self, table: str | None = None) -> OutboxPort:
        return self._outbox(self._async_connection(), table)

    def sync_inbox(self, table: str | None = None) -> InboxPort:
        return MySQLInbox(SyncMySQLConnection(self._options), table or f"{self._prefix}_inbox")

    def _outbox(self, connection: MySQLConnection, table: str | None) -> MySQLOutbox:
        table = table or f"{self._prefix}_outbox"
        probe = outbox_statements(table, self._prefix)["probe"]
        return MySQLOutbox(MySQLTables(connection, self._address, self._prefix, probe), table, self._prefix)

    def completion(self, op: Settlement) -> tuple[Dialect, Sequence[tuple[str, Sequence[Any]]]]:
        claim = (digest(op.scope, op.key), op.owner, op.token)
        sql = load_statements(self._prefix)
        return "mysql", [(sql["complete"], (*claim, op.result, op.retention_us)), (sql["completed"], claim)]

    def schema_sql(self) -> str:
        return store_schema("mysql", self._prefix)

    def __repr__(self) -> str:
        return str(self._address)


class MySQLPort(Port):
    """See `contracts.Port`. One connection; the same code for sync and async."""

    def __init__(self, tables: MySQLTables, prefix: str, returning: bool) -> None:
        self.tables = tables
        self._returning = returning
        self._sql = load_statements(prefix)
        self._upserts_with_alias = upserts_with_alias(prefix)
        #: Which kinds of operation go in one statement, and the method that sends it.
        self._appliers: Sequence[tuple[set[type], Callable[..., Any]]] = (
            ({Claim}, self._claim),
            ({Look}, self._look),
            ({Settlement, Note, Renewal}, self._settle),
            ({Remember}, self._remember),
        )

    # -- the hot path

    async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
        server = await self.tables.connect()
        replies: list[Reply] = [False] * len(batch)
        for kinds, apply in self._appliers:
            # Sorted by id, not by scope and key: locks must be taken in the order of the primary key.
            items = sorted((digest(op.scope, op.key), n) for n, op in enumerate(batch) if type(op) in kinds)
            for part in _packets(batch, items, server.packet_room):
                ops = [batch[position] for _, position in part]
                answers = await apply(server, [row_id for row_id, _ in part], ops)
                for (_, position), answer in zip(part, answers, strict=True):
                    replies[position] = answer
        return replies

    async def _claim(self, server: MySQLServer, ids: Sequence[bytes], ops: Sequence[Claim]) -> Sequence[Reply]:
        stored = await self._upsert(server, "claim", ids, list(map(claim_row, ids, ops)))
        return [read_answer(stored[row_id], op.fingerprints, op.owner) for row_id, op in zip(ids, ops, strict=True)]

    async def _remember(self, server: MySQLServer, ids: Sequence[bytes], ops: Sequence[Remember]) -> Sequence[Reply]:
        rows = [remember_row(row_id, op, server.largest_result) for row_id, op in zip(ids, ops, strict=True)]
        stored = await self._upsert(server, "remember", ids, rows)
        answers = [read_answer(stored[row_id], op.fingerprints) for row_id, op in zip(ids, ops, strict=True)]
        return [answer.kind == "done" if isinstance(answer, Answer) else answer for answer in answers]

    async def _upsert(
        self, server: MySQLServer, name: str, ids: Sequence[bytes], rows: Sequence[str]
    ) -> dict[bytes, tuple[Any, ...]]:
        """Insert or update records. Returns the rows as the statement left them, by id."""
        statements = self._upserts_with_alias if server.supports_row_alias else self._sql
        upsert = fill(statements[name], rows=",".join(rows))
        if self._returning and server.supports_returning:
            [stored] = await self.tables.execute(f"{upsert} RETURNING {self._sql['stored_claim']}")
        else:
            reread = bind(self._sql["reread"], ids=ids)
            _, _, stored, _ = await self.tables.execute(f"BEGIN; {upsert}; {reread}; COMMIT")
        return {row[0]: row for row in stored}

    async def _look(self, server: MySQLServer, ids: Sequence[bytes], ops: Sequence[Look]) -> Sequence[Reply]:
        [rows] = await self.tables.execute(bind(self._sql["look"], ids=ids))
        stored = {row[0]: row for row in rows}
        return [
            read_answer(stored[row_id], op.fingerprints) if row_id in stored else Answer("absent")
            for row_id, op in zip(ids, ops, strict=True)
        ]

    async def _settle(
        self, server: MySQLServer, ids: Sequence[bytes], ops: Sequence[Settlement | Note | Renewal]
    ) -> Sequence[Reply]:
        """The update and the reading are one transaction. Otherwise a rival could claim a released record in between,
        and the release would look refused."""
        rows = [settlement_row(row_id, op, server.largest_result) for row_id, op in zip(ids, ops, strict=True)]
        settle = fill(self._sql["settle"], rows=" UNION ALL ".join(rows))
        read = bind(self._sql["settled"], ids=ids)
        _, _, _, stored, _ = await self.tables.execute(f"{self._sql['before']}; BEGIN; {settle}; {read}; COMMIT")
        settled = {row[0]: row[1:] for row in stored}
        return [
            settled.get(row_id) == (op.owner, op.token, as_settlement(op).state)
            for row_id, op in zip(ids, ops, strict=True)
        ]

    # -- for operators

    async def get(self, scope: str, key: str) -> Record | None:
        records = await self._records([digest(scope, key)])
        return records[0] if records else None

    async def list(self, query: Query) -> Page:
        """Ordered by the last change, newest first; within one scope by creation, unless the query wants the newest
        first: then up to `MAX_SORTED_RECORDS` of the scope are sorted.

        The work for one page is bounded, so a page may hold fewer records than its limit, even none, and still have a
        cursor: finding a rare state in a large scope takes several pages.
        """
        at_us, after = _LAST_POSITION
        if query.cursor is not None:
            at_us, after = read_cursor(query.cursor, _LISTING, tuple[CursorNumber, CursorDigest])
        is_partial = await self._cannot_sort_all(query)
        width = max(SCAN_ENTRIES, query.limit + 1)
        matching: list[bytes] = []
        cursor: str | None = None
        for _ in range(MAX_SCAN_ROUNDS):
            entries = await self._scan(query, at_us, after, width)
            for row_id, position, matches in entries:
                at_us, after = position, row_id
                if matches and len(matching) == query.limit:
                    return Page(await self._records(matching), cursor, is_partial)
                if matches:
                    matching.append(row_id)
                    cursor = write_cursor(_LISTING, (position, row_id))
            if len(entries) < width:
                return Page(await self._records(matching), None, is_partial)
        return Page(await self._records(matching), write_cursor(_LISTING, (at_us, after)), is_partial)

    async def _cannot_sort_all(self, query: Query) -> bool:
        """Whether the query wants to have more records of a scope sorted than we sort."""
        if not query.newest_first or query.scope is None or query.unfinished:
            return False
        more = bind(self._sql["more_of_scope"], scope=query.scope, most=MAX_SORTED_RECORDS)
        return bool((await self.tables.execute(more))[0])

    async def _scan(self, query: Query, at_us: int, after: bytes, width: int) -> ResultRows:
        """Read the next ``width`` entries of the index that serves the query: id, time, and whether the query
        matches."""
        start: dict[str, LiteralValue] = {"at": at_us, "id": after, "width": width}
        # Compared as bytes: to the index, scopes that differ in trailing spaces are equal.
        wanted = "TRUE" if query.scope is None else f"CAST(r.scope AS BINARY) = {bytes_literal(query.scope.encode())}"
        if query.unfinished:
            wanted += " AND r.note IS NOT NULL"
        if query.key_contains:
            wanted += f" AND LOCATE({bytes_literal(query.key_contains.encode())}, CAST(r.`key` AS BINARY)) > 0"
        if query.scope is not None and not query.unfinished:
            if query.state is not None:
                wanted += f" AND r.state = {state_literal(query.state)}"
            sorted_scan = fill(self._sql["sorted_page_of_scope"], wanted=wanted)
            scan = sorted_scan if query.newest_first else self._sql["page_of_scope"]
            scan = bind(scan, scope=query.scope, most=MAX_SORTED_RECORDS, **start)
        else:
            in_index = ("claimed", "free") if query.unfinished else STATES
            scans = [
                bind(fill(self._sql["page_of_state"], state=state_literal(state)), **start)
                for state in in_index
                if query.state in (None, state)
            ]
            scan = scans[0]
            if len(scans) > 1:
                every = " UNION ALL ".join(f"({scan})" for scan in scans)
                scan = f"{every} ORDER BY at DESC, id DESC LIMIT {width}"
        [entries] = await self.tables.execute(fill(self._sql["page"], scan=scan, wanted=wanted))
        return entries

    async def _records(self, ids: Sequence[bytes]) -> Records:
        if not ids:
            return []
        [rows] = await self.tables.execute(bind(self._sql["get"], ids=ids))
        by_id = {row[-1]: row for row in rows}
        return [record_from_values(by_id[row_id]) for row_id in ids if row_id in by_id]

    async def stats(self) -> Stats:
        counts, oldest, swept = await self.tables.execute(bind(self._sql["stats"], cap=MAX_COUNT))
        return Stats(
            counts={state: int(count) for state, count in counts},
            cap=MAX_COUNT,
            oldest_in_doubt=oldest[0][0],
            swept_at=swept[0][0] if swept else None,
        )

    async def forget(self, scope: str, key: str, retention_us: int) -> bool:
        forget = bind(self._sql["forget"], id=digest(scope, key), retention=retention_us)
        _, existing, *_ = await self.tables.execute(forget)
        return bool(existing)

    async def resolve(self, scope: str, key: str, resolution: Resolution) -> bool:
        resolve = bind(
            fill(self._sql["resolve"], state=state_literal(resolution.state)),
            id=digest(scope, key),
            retention=resolution.retention_us,
            is_retry=resolution.state == "free",
            result=resolution.result,
            error=resolution.error,
        )
        _, in_doubt, *_ = await self.tables.execute(resolve)
        return bool(in_doubt)

    async def sweep(self, limit: int) -> SweepResult:
        expired, deleted = await self._sweep_some("expired", "delete", limit)
        lapsed, moved = await self._sweep_some("lapsed", "doubt", limit)
        # Where other sessions hold locks on all of them, another call would find the same ones: that is not `more`.
        more = (expired > limit and deleted > 0) or (lapsed > limit and moved > 0)
        if not more:
            await self.tables.execute(self._sql["swept"])
        return SweepResult(deleted, moved, more)

    async def _sweep_some(self, which: str, action: str, limit: int) -> tuple[int, int]:
        """Apply the statement ``action`` to up to ``limit`` records that the statement ``which`` finds.

        Returns how many it found (up to one over the limit), and how many were changed. A transaction has only a few
        rows; each is changed by its primary key, and locked ones are skipped.
        """
        [rows] = await self.tables.execute(bind(self._sql[which], limit=limit + 1))
        ids = sorted(row[0] for row in rows[:limit])
        changed = 0
        for start in range(0, len(ids), SWEEP_LOCKED_ROWS):
            hold = bind(self._sql[f"hold_{which}"], ids=ids[start : start + SWEEP_LOCKED_ROWS])
            _, held = await self.tables.execute(hold)
            actions = [bind(self._sql[action], id=row[0]) for row in held]
            await self.tables.execute("; ".join([*actions, "COMMIT"]))
            changed += len(held)
        return len(rows), changed

    async def figures(self, before: int) -> Figures:
        figures = bind(self._sql["figures"], overdue=before, cap=MAX_COUNT)
        [[[overdue, oldest]], table_sizes] = await self.tables.execute(figures)
        try:
            [transactions] = await self.tables.execute(self._sql["figures_transaction"])
        except ConfigurationError:  # other sessions' transactions are seen with the privilege PROCESS only
            transactions = ()
        age, thread, state = transactions[0] if transactions else (0.0, 0, "")
        return Figures(
            overdue=int(overdue),
            oldest_overdue=oldest,
            cap=MAX_COUNT,
            transaction_age_s=float(age),
            transaction=f"thread {thread}, {str(state).lower()}" if transactions else "",
            rows={str(name): (int(live), 0) for name, live in table_sizes},
        )

    async def now(self) -> int:
        [[[now]]] = await self.tables.connection.execute(self._sql["clock"])
        return int(now)

    # -- the schema

    async def check(self) -> None:
        connection, address = self.tables.connection, self.tables.address
        await self.tables.verify()
        await connection.execute(self._sql["rights"])
        tables, variables, clock = await connection.execute(self._sql["safety"])
        settings = {str(name).lower(): str(value).upper() for name, value in variables}
        if settings.get("read_only", "OFF") not in ("OFF", "0"):
            raise StoreUnavailable(
                f"{address} is read-only, perhaps a replica, and claims need the primary; connect to the primary"
            )
        unsafe = [
            f"table {name} is {engine}, not InnoDB: ALTER TABLE {name} ENGINE = InnoDB"
            for name, engine in tables
            if engine != "InnoDB"
        ]
        if settings.get("innodb_flush_log_at_trx_commit") != "1":
            unsafe.append("innodb_flush_log_at_trx_commit is not 1: a crash loses what was confirmed; set it to 1")
        if settings.get("log_bin") in ("ON", "1") and settings.get("binlog_format") == "STATEMENT":
            unsafe.append("binlog_format is STATEMENT: replicas would compute other times; set it to ROW or MIXED")
        if int(settings.get("max_allowed_packet", MIN_PACKET_BYTES)) < MIN_PACKET_BYTES:
            unsafe.append(f"max_allowed_packet is under {MIN_PACKET_BYTES}: results do not fit; set it to 16M")
        if not clock[0][1]:
            unsafe.append(
                "the server runs with --sysdate-is-now: leases lose the time spent waiting for locks; start it without"
            )
        if unsafe:
            raise UnsafeStore(f"{address} may lose records: {'; '.join(unsafe)}")

    async def migrate(self) -> None:
        await self.tables.migrate()

    async def close(self) -> None:
        await self.tables.connection.close()


def _packets(
    batch: Sequence[Batchable], items: Sequence[tuple[bytes, int]], packet_room: int
) -> Iterator[list[tuple[bytes, int]]]:
    """Split ``items``, each an id and a position in the batch, into packets that the server accepts: usually one."""
    part: list[tuple[bytes, int]] = []
    room = packet_room
    for item in items:
        size = max_packet_bytes(batch[item[1]])
        if size > room and part:
            yield part
            part, room = [], packet_room
        part.append(item)
        room -= size
    if part:
        yield part
