"""Records in MySQL >= 8.0 or MariaDB >= 10.6.

A batch of claims is one `INSERT ... ON DUPLICATE KEY UPDATE`, of settlements and notes one `UPDATE` with a join, each
with what is needed to answer in the same packet. MariaDB returns the rows of the insert itself; MySQL reads them in
the same transaction. The statements are in ``backends/mysql/records.sql``, with the reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from effectonce.backends.common.sql_files import fill, table_prefix
from effectonce.contracts import Capabilities, Dialect, OutboxPort, Port
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
    State,
    Stats,
    Swept,
)
from effectonce.values.identity import digest
from effectonce.values.urls import Address

from .connection import (
    AsyncMySQLConnection,
    MySQLConnection,
    MySQLOptions,
    ResultRows,
    SyncMySQLConnection,
    blob,
    blobs,
    load_driver,
    text,
)
from .outbox import MySQLOutbox
from .rows import NOW, answer_of, load_statements, packet_size_of, parse_cursor, record_of, upserts_with_alias
from .schema import MySQLSchema, schema_sql

MAX_COUNT = 100_000  # the most that `stats` counts of a state
MAX_PAGE = 1_000  # records
SCAN_ENTRIES = 500  # index entries read in one round of a list ...
MAX_SCAN_ROUNDS = 20  # ... and how many rounds it makes for one page
PACKET_OVERHEAD_BYTES = 65_536  # beside the values a packet holds the statement and the list of ids
MIN_PACKET_BYTES = 1_048_576
SWEEP_LOCKED_ROWS = 100  # records that a sweep locks at a time

STATES: tuple[State, ...] = ("claimed", "done", "failed", "in_doubt", "free")
_CHECKED_STATES = {state: state for state in STATES}  # only these go into statements as quoted text


class MySQLBackend:
    """The store at a mysql:// or mariadb:// URL.

    Options: ``timeout`` and ``connect_timeout`` (5s each), ``prefix`` of the tables (effectonce), ``socket`` (a Unix
    socket's path), ``ssl`` (true, or the path of the certificate authority to trust), ``returning`` (auto; off treats
    MariaDB as MySQL, for a proxy that does not know INSERT ... RETURNING).
    """

    capabilities = Capabilities(name="mysql", lanes=3, notes=True)

    def __init__(self, address: Address) -> None:
        self._address = address
        self._options = MySQLOptions(address)
        self._prefix = address.take("prefix", table_prefix, "effectonce")
        self._returning = address.take("returning", {"auto": True, "off": False}.__getitem__, True)
        address.done()
        load_driver("pymysql", "PyMySQL")

    def sync_port(self) -> Port:
        return self._port(SyncMySQLConnection(self._options))

    def async_port(self) -> Port:
        return self._port(AsyncMySQLConnection(self._options))

    def _port(self, connection: MySQLConnection) -> MySQLPort:
        return MySQLPort(connection, self._address, self._prefix, self._returning)

    def sync_outbox(self, table: str | None = None) -> OutboxPort:
        return self._outbox(SyncMySQLConnection(self._options), table)

    def async_outbox(self, table: str | None = None) -> OutboxPort:
        return self._outbox(AsyncMySQLConnection(self._options), table)

    def _outbox(self, connection: MySQLConnection, table: str | None) -> MySQLOutbox:
        schema = MySQLSchema(connection, self._address, self._prefix)
        return MySQLOutbox(connection, schema, table or f"{self._prefix}_outbox", self._prefix)

    def completion(self, op: Settlement) -> tuple[Dialect, Sequence[tuple[str, Sequence[Any]]]]:
        claim = (digest(op.scope, op.key), op.owner, op.token)
        sql = load_statements(self._prefix)
        return "mysql", [(sql["complete"], (*claim, op.result, op.retention)), (sql["completed"], claim)]

    def schema_sql(self) -> str:
        return schema_sql(self._prefix)

    def __repr__(self) -> str:
        return str(self._address)


class MySQLPort:
    """See `contracts.Port`. One connection; the same code for sync and async."""

    def __init__(self, connection: MySQLConnection, address: Address, prefix: str, returning: bool) -> None:
        self._connection = connection
        self._address = address
        self._schema = MySQLSchema(connection, address, prefix)
        self._returning = returning
        self._sql = load_statements(prefix)
        self._upserts_with_alias = upserts_with_alias(prefix)
        self._packet_room = 0  # bytes of values that fit into one packet of this server

    # -- the hot path

    async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
        if not batch:
            return []
        await self._prepare()
        replies: list[Reply] = [False] * len(batch)
        kinds: dict[type, list[int]] = {}
        for position, op in enumerate(batch):
            kinds.setdefault(type(op), []).append(position)
        if Note in kinds and Settlement in kinds:  # one statement: one commit, and one order of locks
            kinds[Settlement] += kinds.pop(Note)
        for kind, positions in kinds.items():
            # Sorted by id, not by scope and key: locks must be taken in the order of the primary key.
            items = sorted((digest(batch[n].scope, batch[n].key), n) for n in positions)
            for part in self._packets(batch, items):
                ops = [batch[position] for _, position in part]
                answers = await self._appliers[kind](self, [row_id for row_id, _ in part], ops)
                for (_, position), answer in zip(part, answers, strict=True):
                    replies[position] = answer
        return replies

    def _packets(self, batch: Sequence[Batchable], items: list[tuple[bytes, int]]) -> Iterator[list[tuple[bytes, int]]]:
        """``items`` in as many parts as the server's packet size requires: usually one."""
        part: list[tuple[bytes, int]] = []
        room = self._packet_room
        for item in items:
            room -= packet_size_of(batch[item[1]])
            if room < 0 and part:
                yield part
                part, room = [], self._packet_room - packet_size_of(batch[item[1]])
            part.append(item)
        yield part

    async def _claim(self, ids: Sequence[bytes], ops: Sequence[Claim]) -> list[Reply]:
        rows = [
            f"({blob(row_id)},{text(op.scope)},{text(op.key)},{blob(op.owner)},{op.doubt_on_lapse:d},"
            f"{blob(op.fingerprints)},{op.lease:d},{op.retention:d},{op.max_attempts:d},"
            f"{NOW},changed_at,changed_at,changed_at+lease,"
            f"{'NULL' if op.doubt_on_lapse else 'lease_until+retention'},'claimed',1,{blob(op.note)})"
            for row_id, op in zip(ids, ops, strict=True)
        ]
        stored = await self._upsert("claim", ids, rows)
        return [answer_of(stored[row_id], op.fingerprints, op.owner) for row_id, op in zip(ids, ops, strict=True)]

    async def _remember(self, ids: Sequence[bytes], ops: Sequence[Remember]) -> list[Reply]:
        rows = [
            f"({blob(row_id)},{text(op.scope)},{text(op.key)},'',{blob(op.fingerprints)},{op.retention:d},"
            f"{NOW},changed_at,changed_at,changed_at+retention,'done',0,{self._payload(op.result)})"
            for row_id, op in zip(ids, ops, strict=True)
        ]
        stored = await self._upsert("remember", ids, rows)
        answers = [answer_of(stored[row_id], op.fingerprints) for row_id, op in zip(ids, ops, strict=True)]
        return [answer.kind == "done" if isinstance(answer, Answer) else answer for answer in answers]

    async def _look(self, ids: Sequence[bytes], ops: Sequence[Look]) -> list[Reply]:
        [rows] = await self._execute(fill(self._sql["look"], ids=blobs(ids)))
        stored = {row[0]: row for row in rows}
        return [
            answer_of(stored[row_id], op.fingerprints) if row_id in stored else Answer("absent")
            for row_id, op in zip(ids, ops, strict=True)
        ]

    async def _settle(self, ids: Sequence[bytes], ops: Sequence[Settlement | Note]) -> list[Reply]:
        """Settle, and write notes: to the statement, a note is a settlement that leaves the claim claimed."""
        states = ["claimed" if isinstance(op, Note) else _CHECKED_STATES[op.state] for op in ops]
        rows = [
            f"SELECT {blob(row_id)} AS id,{blob(op.owner)} AS owner,{op.token:d} AS token,'{state}' AS state,"
            f"{self._settlement_columns(op)},{blob(op.note)} AS note"
            for row_id, op, state in zip(ids, ops, states, strict=True)
        ]
        settled = await self._update("settle", ids, rows)
        return [
            settled.get(row_id) == (op.owner, op.token, state)
            for row_id, op, state in zip(ids, ops, states, strict=True)
        ]

    def _settlement_columns(self, op: Settlement | Note) -> str:
        if isinstance(op, Note):
            return "0 AS retention,NULL AS result,NULL AS error,0 AS refund"
        return (
            f"{op.retention:d} AS retention,{self._payload(op.result)} AS result,{self._payload(op.error)} AS error,"
            f"{op.refund:d} AS refund"
        )

    async def _note(self, ids: Sequence[bytes], ops: Sequence[Note]) -> list[Reply]:
        rows = [
            f"SELECT {blob(row_id)} AS id,{blob(op.owner)} AS owner,{op.token:d} AS token,{blob(op.note)} AS note"
            for row_id, op in zip(ids, ops, strict=True)
        ]
        updated = await self._update("note", ids, rows)
        return [updated.get(row_id) == (op.owner, op.token, "claimed") for row_id, op in zip(ids, ops, strict=True)]

    async def _renew(self, ids: Sequence[bytes], ops: Sequence[Renewal]) -> list[Reply]:
        rows = [
            f"SELECT {blob(row_id)} AS id,{blob(op.owner)} AS owner,{op.token:d} AS token,{op.lease:d} AS lease,"
            f"{op.retention:d} AS retention"
            for row_id, op in zip(ids, ops, strict=True)
        ]
        updated = await self._update("renew", ids, rows)
        return [updated.get(row_id) == (op.owner, op.token, "claimed") for row_id, op in zip(ids, ops, strict=True)]

    _appliers: ClassVar[dict[type, Callable[..., Any]]] = {
        Claim: _claim,
        Look: _look,
        Settlement: _settle,
        Note: _note,
        Renewal: _renew,
        Remember: _remember,
    }

    async def _upsert(self, name: str, ids: Sequence[bytes], rows: Sequence[str]) -> dict[bytes, tuple[Any, ...]]:
        """Insert or update. Returns the rows as they are then, by id."""
        server = await self._connection.connect()
        statement = fill(
            self._upserts_with_alias[name] if server.supports_row_alias else self._sql[name], rows=",".join(rows)
        )
        columns = self._sql["stored_claim"]
        if self._returning and server.returning:
            [stored] = await self._execute(f"{statement} RETURNING {columns}")
        else:
            read = fill(self._sql["reread"], ids=blobs(ids))
            _, _, stored, _ = await self._execute(f"BEGIN; {statement}; {read}; COMMIT")
        return {row[0]: row for row in stored}

    async def _update(self, name: str, ids: Sequence[bytes], rows: Sequence[str]) -> dict[bytes, tuple[Any, ...]]:
        """Update. Returns (owner, token, state) as they are then, by id.

        It is one transaction: else a rival that claims a released record at once would make the release look refused.
        """
        statement = fill(self._sql[name], rows=" UNION ALL ".join(rows))
        read = fill(self._sql["settled"], ids=blobs(ids))
        packet = f"{self._sql['before']}; BEGIN; {statement}; {read}; COMMIT"
        _, _, _, stored, _ = await self._execute(packet)
        return {row[0]: row[1:] for row in stored}

    def _payload(self, value: bytes | None) -> str:
        """The literal of a result. One that no packet can carry is not stored, and the record is done all the same
        (F18: a result that is too large must not undo a success)."""
        return blob(value if value is None or 4 * len(value) < self._packet_room else None)

    async def _prepare(self) -> None:
        """Connect, and check the schema once per connection."""
        server, is_new = await self._schema.prepare()
        if is_new:
            self._packet_room = max(server.max_packet - PACKET_OVERHEAD_BYTES, server.max_packet // 2)

    async def _execute(self, sql: str) -> list[ResultRows]:
        await self._prepare()
        return await self._connection.execute(sql)

    # -- for operators

    async def get(self, scope: str, key: str) -> Record | None:
        [rows] = await self._execute(fill(self._sql["get"], ids=blob(digest(scope, key))))
        return record_of(rows[0]) if rows else None

    async def list(self, query: Query) -> Page:
        """Ordered by the last change, newest first; within one scope, by creation.

        The work for one page is bounded, so a page may hold fewer records than its limit, even none, and still have a
        cursor: finding a rare state in a large scope takes several pages.
        """
        limit = min(query.limit, MAX_PAGE)
        at, after = parse_cursor(query.cursor)
        width = max(SCAN_ENTRIES, limit + 1)
        wanted: list_[bytes] = []
        cursor: str | None = None
        for _ in range(MAX_SCAN_ROUNDS):
            entries = await self._scan(query, at, after, width)
            for row_id, position, matches in entries:
                at, after = position, row_id
                if matches and len(wanted) == limit:
                    return Page(await self._records(wanted), cursor)
                if matches:
                    wanted.append(row_id)
                    cursor = f"{position}:{row_id.hex()}"
            if len(entries) < width:
                return Page(await self._records(wanted))
        return Page(await self._records(wanted), f"{at}:{after.hex()}")

    async def _scan(self, query: Query, at: int, after: bytes, width: int) -> ResultRows:
        """The next ``width`` entries of the index that serves the query: id, time, and whether the query matches."""
        place = {"at": str(at), "id": blob(after), "width": str(width)}
        # Compared as bytes: to the index, scopes that differ in trailing spaces are equal.
        wanted = "TRUE" if query.scope is None else f"CAST(r.scope AS BINARY) = {blob(query.scope.encode())}"
        if query.unfinished:
            wanted += " AND r.note IS NOT NULL"
        if query.scope is not None and not query.unfinished:
            stretch = fill(self._sql["page_of_scope"], scope=text(query.scope), **place)
            if query.state is not None:
                wanted += f" AND r.state = '{_CHECKED_STATES[query.state]}'"
        else:
            states = STATES if query.state is None else (query.state,)
            if query.unfinished:
                states = tuple(state for state in ("claimed", "free") if state in states)
            parts = [fill(self._sql["page_of_state"], state=f"'{_CHECKED_STATES[state]}'", **place) for state in states]
            stretch = parts[0]
            if len(parts) > 1:
                every = " UNION ALL ".join(f"({part})" for part in parts)
                stretch = f"{every} ORDER BY at DESC, id DESC LIMIT {width}"
        [entries] = await self._execute(fill(self._sql["page"], stretch=stretch, wanted=wanted))
        return entries

    async def _records(self, ids: Sequence[bytes]) -> list_[Record]:
        if not ids:
            return []
        [rows] = await self._execute(fill(self._sql["get"], ids=blobs(ids)))
        by_id = {row[-1]: row for row in rows}
        return [record_of(by_id[row_id]) for row_id in ids if row_id in by_id]

    async def stats(self) -> Stats:
        counts, oldest, swept = await self._execute(fill(self._sql["stats"], cap=str(MAX_COUNT)))
        return Stats(
            counts={state: int(count) for state, count in counts},
            cap=MAX_COUNT,
            oldest_in_doubt=oldest[0][0],
            swept_at=swept[0][0] if swept else None,
        )

    async def forget(self, scope: str, key: str, retention: int) -> bool:
        row_id = blob(digest(scope, key))
        results = await self._execute(fill(self._sql["forget"], id=row_id, retention=f"{retention:d}"))
        return bool(results[1])

    async def resolve(self, scope: str, key: str, resolution: Resolution) -> bool:
        sql = fill(
            self._sql["resolve"],
            id=blob(digest(scope, key)),
            retention=f"{resolution.retention:d}",
            state=f"'{_CHECKED_STATES[resolution.state]}'",
            retry="1" if resolution.state == "free" else "0",
            result=blob(resolution.result),
            error=blob(resolution.error),
        )
        return bool((await self._execute(sql))[1])

    async def sweep(self, limit: int) -> Swept:
        expired, deleted = await self._reap("expired", "delete", limit)
        lapsed, moved = await self._reap("lapsed", "doubt", limit)
        # Where others hold locks on all of them, another call would find the same ones.
        more = (expired > limit and deleted > 0) or (lapsed > limit and moved > 0)
        if not more:
            await self._execute(self._sql["swept"])
        return Swept(deleted, moved, more)

    async def _reap(self, which: str, action: str, limit: int) -> tuple[int, int]:
        """Apply ``action`` to up to ``limit`` records. Returns how many there were (up to one over the limit), and how
        many were changed.

        In transactions of a few rows each, every row by its primary key, skipping those that are locked.
        """
        [rows] = await self._execute(fill(self._sql[which], limit=str(limit + 1)))
        ids = sorted(row[0] for row in rows[:limit])
        changed = 0
        for start in range(0, len(ids), SWEEP_LOCKED_ROWS):
            hold = fill(self._sql[f"hold_{which}"], ids=blobs(ids[start : start + SWEEP_LOCKED_ROWS]))
            _, held = await self._execute(hold)
            actions = [fill(self._sql[action], id=blob(row[0])) for row in held]
            await self._execute("; ".join([*actions, "COMMIT"]))
            changed += len(held)
        return len(rows), changed

    async def figures(self, before: int) -> Figures:
        [[[overdue, oldest]], table_sizes] = await self._execute(
            fill(self._sql["figures"], overdue=str(before), cap=str(MAX_COUNT))
        )
        try:
            [transactions] = await self._execute(self._sql["figures_transaction"])
        except ConfigurationError:  # other sessions' transactions are seen with the privilege PROCESS only
            transactions = ()
        age, thread, state = transactions[0] if transactions else (0.0, 0, "")
        return Figures(
            overdue=int(overdue),
            oldest_overdue=oldest,
            cap=MAX_COUNT,
            transaction_age=float(age),
            transaction=f"thread {thread}, {str(state).lower()}" if transactions else "",
            rows={str(name): (int(live), 0) for name, live in table_sizes},
        )

    async def changes(self, timeout: float) -> Sequence[tuple[str, str]]:
        return ()

    async def now(self) -> int:
        [[[now]]] = await self._connection.execute(self._sql["clock"])
        return int(now)

    # -- the schema

    async def check(self) -> None:
        await self._connection.connect()
        await self._schema.verify()
        await self._connection.execute(self._sql["rights"])
        tables, variables, clock = await self._connection.execute(self._sql["safety"])
        settings = {str(name).lower(): str(value).upper() for name, value in variables}
        if settings.get("read_only", "OFF") not in ("OFF", "0"):
            raise StoreUnavailable(
                f"{self._address} is read-only, perhaps a replica, and claims need the primary; connect to the primary"
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
            raise UnsafeStore(f"{self._address} may lose records: {'; '.join(unsafe)}")

    async def migrate(self) -> None:
        await self._schema.migrate()

    async def close(self) -> None:
        await self._connection.close()


list_ = list  # inside of the port, `list` is a method
