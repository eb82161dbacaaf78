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

from .connection import AsyncWire, Options, Rows, SyncWire, Wire, binaries, binary, driver, text
from .outbox import MySQLOutbox
from .rows import NOW, aliased, answer_of, place_of, queries, record_of, weight_of
from .schema import Schema, schema_sql

CAP = 100_000  # the most that `stats` counts of a state
LONGEST_PAGE = 1_000
STRETCH = 500  # index entries looked at in one round of a list ...
ROUNDS = 20  # ... and how many rounds it makes for one page
OVERHEAD = 65_536  # what a packet holds beside the values: the statement, the list of ids
SMALLEST_PACKET = 1_048_576
HELD = 100  # records that a sweep locks at a time

STATES: tuple[State, ...] = ("claimed", "done", "failed", "in_doubt", "free")
_STATE = {state: state for state in STATES}  # the only texts that are quoted


class MySQLBackend:
    """The store at a mysql:// or mariadb:// URL.

    Options: ``timeout`` and ``connect_timeout`` (5s each), ``prefix`` of the tables (effectonce), ``socket`` (a Unix
    socket's path), ``ssl`` (true, or the path of the certificate authority to trust), ``returning`` (auto; off asks
    MariaDB in the way MySQL needs, for a proxy that does not know INSERT ... RETURNING).
    """

    capabilities = Capabilities(name="mysql", lanes=3, notes=True)

    def __init__(self, address: Address) -> None:
        self._address = address
        self._options = Options(address)
        self._prefix = address.take("prefix", table_prefix, "effectonce")
        self._returning = address.take("returning", {"auto": True, "off": False}.__getitem__, True)
        address.done()
        driver("pymysql", "PyMySQL")

    def sync_port(self) -> Port:
        return self._port(SyncWire(self._options))

    def async_port(self) -> Port:
        return self._port(AsyncWire(self._options))

    def _port(self, wire: Wire) -> MySQLPort:
        return MySQLPort(wire, self._address, self._prefix, self._returning)

    def sync_outbox(self, table: str | None = None) -> OutboxPort:
        return self._outbox(SyncWire(self._options), table)

    def async_outbox(self, table: str | None = None) -> OutboxPort:
        return self._outbox(AsyncWire(self._options), table)

    def _outbox(self, wire: Wire, table: str | None) -> MySQLOutbox:
        schema = Schema(wire, self._address, self._prefix)
        return MySQLOutbox(wire, schema, table or f"{self._prefix}_outbox", self._prefix)

    def completion(self, op: Settlement) -> tuple[Dialect, Sequence[tuple[str, Sequence[Any]]]]:
        mine = (digest(op.scope, op.key), op.owner, op.token)
        sql = queries(self._prefix)
        return "mysql", [(sql["complete"], (*mine, op.result, op.retention)), (sql["completed"], mine)]

    def schema_sql(self) -> str:
        return schema_sql(self._prefix)

    def __repr__(self) -> str:
        return str(self._address)


class MySQLPort:
    """See `contracts.Port`. One connection; the same code in both colours."""

    def __init__(self, wire: Wire, address: Address, prefix: str, returning: bool) -> None:
        self._wire = wire
        self._address = address
        self._schema = Schema(wire, address, prefix)
        self._returning = returning
        self._sql = queries(prefix)
        self._aliased = aliased(prefix)
        self._room = 0  # bytes of values that fit in a packet there

    # -- the hot path

    async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
        if not batch:
            return []
        await self._ready()
        replies: list[Reply] = [False] * len(batch)
        kinds: dict[type, list[int]] = {}
        for position, op in enumerate(batch):
            kinds.setdefault(type(op), []).append(position)
        if Note in kinds and Settlement in kinds:  # one statement: one commit, and one order of locks
            kinds[Settlement] += kinds.pop(Note)
        for kind, positions in kinds.items():
            # By id, not by identity as they came: the order in which locks must be taken is the primary key's.
            items = sorted((digest(batch[n].scope, batch[n].key), n) for n in positions)
            for part in self._packets(batch, items):
                ops = [batch[position] for _, position in part]
                answers = await self._applies[kind](self, [id_ for id_, _ in part], ops)
                for (_, position), answer in zip(part, answers, strict=True):
                    replies[position] = answer
        return replies

    def _packets(self, batch: Sequence[Batchable], items: list[tuple[bytes, int]]) -> Iterator[list[tuple[bytes, int]]]:
        """``items`` in as many parts as the server's packet size asks for: one, but for the smallest."""
        part: list[tuple[bytes, int]] = []
        room = self._room
        for item in items:
            room -= weight_of(batch[item[1]])
            if room < 0 and part:
                yield part
                part, room = [], self._room - weight_of(batch[item[1]])
            part.append(item)
        yield part

    async def _claim(self, ids: Sequence[bytes], ops: Sequence[Claim]) -> list[Reply]:
        rows = [
            f"({binary(id_)},{text(op.scope)},{text(op.key)},{binary(op.owner)},{op.doubt_on_lapse:d},"
            f"{binary(op.fingerprints)},{op.lease:d},{op.retention:d},{op.max_attempts:d},"
            f"{NOW},changed_at,changed_at,changed_at+lease,"
            f"{'NULL' if op.doubt_on_lapse else 'lease_until+retention'},'claimed',1,{binary(op.note)})"
            for id_, op in zip(ids, ops, strict=True)
        ]
        found = await self._upsert("claim", ids, rows)
        return [answer_of(found[id_], op.fingerprints, op.owner) for id_, op in zip(ids, ops, strict=True)]

    async def _remember(self, ids: Sequence[bytes], ops: Sequence[Remember]) -> list[Reply]:
        rows = [
            f"({binary(id_)},{text(op.scope)},{text(op.key)},'',{binary(op.fingerprints)},{op.retention:d},"
            f"{NOW},changed_at,changed_at,changed_at+retention,'done',0,{self._payload(op.result)})"
            for id_, op in zip(ids, ops, strict=True)
        ]
        found = await self._upsert("remember", ids, rows)
        answers = [answer_of(found[id_], op.fingerprints) for id_, op in zip(ids, ops, strict=True)]
        return [answer.kind == "done" if isinstance(answer, Answer) else answer for answer in answers]

    async def _look(self, ids: Sequence[bytes], ops: Sequence[Look]) -> list[Reply]:
        [rows] = await self._ask(fill(self._sql["look"], ids=binaries(ids)))
        found = {row[0]: row for row in rows}
        return [
            answer_of(found[id_], op.fingerprints) if id_ in found else Answer("absent")
            for id_, op in zip(ids, ops, strict=True)
        ]

    async def _settle(self, ids: Sequence[bytes], ops: Sequence[Settlement | Note]) -> list[Reply]:
        """Notes may be among them: to the statement, settlements that leave a claim a claim."""
        states = ["claimed" if isinstance(op, Note) else _STATE[op.state] for op in ops]
        rows = [
            f"SELECT {binary(id_)} AS id,{binary(op.owner)} AS owner,{op.token:d} AS token,'{state}' AS state,"
            f"{self._outcome(op)},{binary(op.note)} AS note"
            for id_, op, state in zip(ids, ops, states, strict=True)
        ]
        found = await self._update("settle", ids, rows)
        return [found.get(id_) == (op.owner, op.token, state) for id_, op, state in zip(ids, ops, states, strict=True)]

    def _outcome(self, op: Settlement | Note) -> str:
        if isinstance(op, Note):
            return "0 AS retention,NULL AS result,NULL AS error,0 AS refund"
        return (
            f"{op.retention:d} AS retention,{self._payload(op.result)} AS result,{self._payload(op.error)} AS error,"
            f"{op.refund:d} AS refund"
        )

    async def _note(self, ids: Sequence[bytes], ops: Sequence[Note]) -> list[Reply]:
        rows = [
            f"SELECT {binary(id_)} AS id,{binary(op.owner)} AS owner,{op.token:d} AS token,{binary(op.note)} AS note"
            for id_, op in zip(ids, ops, strict=True)
        ]
        found = await self._update("note", ids, rows)
        return [found.get(id_) == (op.owner, op.token, "claimed") for id_, op in zip(ids, ops, strict=True)]

    async def _renew(self, ids: Sequence[bytes], ops: Sequence[Renewal]) -> list[Reply]:
        rows = [
            f"SELECT {binary(id_)} AS id,{binary(op.owner)} AS owner,{op.token:d} AS token,{op.lease:d} AS lease,"
            f"{op.retention:d} AS retention"
            for id_, op in zip(ids, ops, strict=True)
        ]
        found = await self._update("renew", ids, rows)
        return [found.get(id_) == (op.owner, op.token, "claimed") for id_, op in zip(ids, ops, strict=True)]

    _applies: ClassVar[dict[type, Callable[..., Any]]] = {
        Claim: _claim,
        Look: _look,
        Settlement: _settle,
        Note: _note,
        Renewal: _renew,
        Remember: _remember,
    }

    async def _upsert(self, name: str, ids: Sequence[bytes], rows: Sequence[str]) -> dict[bytes, tuple[Any, ...]]:
        """Insert or update, and the rows as they are then, by id."""
        server = await self._wire.connected()
        statement = fill(self._aliased[name] if server.aliases else self._sql[name], rows=",".join(rows))
        columns = self._sql["standing"]
        if self._returning and server.returning:
            [found] = await self._ask(f"{statement} RETURNING {columns}")
        else:
            read = fill(self._sql["reread"], ids=binaries(ids))
            _, _, found, _ = await self._ask(f"BEGIN; {statement}; {read}; COMMIT")
        return {row[0]: row for row in found}

    async def _update(self, name: str, ids: Sequence[bytes], rows: Sequence[str]) -> dict[bytes, tuple[Any, ...]]:
        """Update, and (owner, token, state) as they are then, by id. One transaction: a rival that takes a
        released record at once would otherwise make the release look refused."""
        statement = fill(self._sql[name], rows=" UNION ALL ".join(rows))
        read = fill(self._sql["settled"], ids=binaries(ids))
        packet = f"{self._sql['before']}; BEGIN; {statement}; {read}; COMMIT"
        found = (await self._ask(packet))[3]
        return {row[0]: row[1:] for row in found}

    def _payload(self, value: bytes | None) -> str:
        """F18: a result that no packet can carry is not stored, and the record is done all the same."""
        return binary(value if value is None or 4 * len(value) < self._room else None)

    async def _ready(self) -> None:
        """Connected, and the schema looked at once on this connection."""
        server, new = await self._schema.ready()
        if new:
            self._room = max(server.max_packet - OVERHEAD, server.max_packet // 2)

    async def _ask(self, sql: str) -> list[Rows]:
        await self._ready()
        return await self._wire.ask(sql)

    # -- for people

    async def get(self, scope: str, key: str) -> Record | None:
        [rows] = await self._ask(fill(self._sql["get"], ids=binary(digest(scope, key))))
        return record_of(rows[0]) if rows else None

    async def list(self, query: Query) -> Page:
        """In the order of the last change, newest first; of one scope, in the order of creation.

        A page may hold less than its limit, even nothing, and lead on: the work for one is bounded, and a rare
        state in a large scope takes several.
        """
        limit = min(query.limit, LONGEST_PAGE)
        at, after = place_of(query.cursor)
        width = max(STRETCH, limit + 1)
        wanted: list_[bytes] = []
        cursor: str | None = None
        for _ in range(ROUNDS):
            keys = await self._stretch(query, at, after, width)
            for id_, position, matches in keys:
                at, after = position, id_
                if matches and len(wanted) == limit:
                    return Page(await self._records(wanted), cursor)
                if matches:
                    wanted.append(id_)
                    cursor = f"{position}:{id_.hex()}"
            if len(keys) < width:
                return Page(await self._records(wanted))
        return Page(await self._records(wanted), f"{at}:{after.hex()}")

    async def _stretch(self, query: Query, at: int, after: bytes, width: int) -> Rows:
        """The next ``width`` entries of the index that serves the query, each with whether it is wanted."""
        place = {"at": str(at), "id": binary(after), "width": str(width)}
        # As bytes: to the index, scopes that differ in trailing spaces are equal.
        wanted = "TRUE" if query.scope is None else f"CAST(r.scope AS BINARY) = {binary(query.scope.encode())}"
        if query.unfinished:
            wanted += " AND r.note IS NOT NULL"
        if query.scope is not None and not query.unfinished:
            stretch = fill(self._sql["page_of_scope"], scope=text(query.scope), **place)
            if query.state is not None:
                wanted += f" AND r.state = '{_STATE[query.state]}'"
        else:
            states = STATES if query.state is None else (query.state,)
            if query.unfinished:
                states = tuple(state for state in ("claimed", "free") if state in states)
            parts = [fill(self._sql["page_of_state"], state=f"'{_STATE[state]}'", **place) for state in states]
            stretch = parts[0]
            if len(parts) > 1:
                every = " UNION ALL ".join(f"({part})" for part in parts)
                stretch = f"{every} ORDER BY at DESC, id DESC LIMIT {width}"
        [keys] = await self._ask(fill(self._sql["page"], stretch=stretch, wanted=wanted))
        return keys

    async def _records(self, ids: Sequence[bytes]) -> list_[Record]:
        if not ids:
            return []
        [rows] = await self._ask(fill(self._sql["get"], ids=binaries(ids)))
        found = {row[-1]: row for row in rows}
        return [record_of(found[id_]) for id_ in ids if id_ in found]

    async def stats(self) -> Stats:
        counts, oldest, swept = await self._ask(fill(self._sql["stats"], cap=str(CAP)))
        return Stats(
            counts={state: int(count) for state, count in counts},
            cap=CAP,
            oldest_in_doubt=oldest[0][0],
            swept_at=swept[0][0] if swept else None,
        )

    async def forget(self, scope: str, key: str, retention: int) -> bool:
        id_ = binary(digest(scope, key))
        results = await self._ask(fill(self._sql["forget"], id=id_, retention=f"{retention:d}"))
        return bool(results[1])

    async def resolve(self, scope: str, key: str, resolution: Resolution) -> bool:
        sql = fill(
            self._sql["resolve"],
            id=binary(digest(scope, key)),
            retention=f"{resolution.retention:d}",
            state=f"'{_STATE[resolution.state]}'",
            retry="1" if resolution.state == "free" else "0",
            result=binary(resolution.result),
            error=binary(resolution.error),
        )
        return bool((await self._ask(sql))[1])

    async def sweep(self, limit: int) -> Swept:
        expired, deleted = await self._reap("expired", "delete", limit)
        lapsed, moved = await self._reap("lapsed", "doubt", limit)
        # Where others hold all that was found, another call would find the same.
        more = (expired > limit and deleted > 0) or (lapsed > limit and moved > 0)
        if not more:
            await self._ask(self._sql["swept"])
        return Swept(deleted, moved, more)

    async def _reap(self, which: str, action: str, limit: int) -> tuple[int, int]:
        """Do ``action`` to up to ``limit`` records; how many there were (at most one more), and how many it did.

        In transactions of a few rows each, every row by its primary key and only where nobody holds it.
        """
        [rows] = await self._ask(fill(self._sql[which], limit=str(limit + 1)))
        ids = sorted(row[0] for row in rows[:limit])
        done = 0
        for start in range(0, len(ids), HELD):
            hold = fill(self._sql[f"hold_{which}"], ids=binaries(ids[start : start + HELD]))
            _, held = await self._ask(hold)
            acts = [fill(self._sql[action], id=binary(row[0])) for row in held]
            await self._ask("; ".join([*acts, "COMMIT"]))
            done += len(held)
        return len(rows), done

    async def figures(self, before: int) -> Figures:
        [[[overdue, oldest]], tables_] = await self._ask(fill(self._sql["figures"], overdue=str(before), cap=str(CAP)))
        try:
            [transactions] = await self._ask(self._sql["figures_transaction"])
        except ConfigurationError:  # without the privilege PROCESS, others' transactions are not seen
            transactions = ()
        age, thread, state = transactions[0] if transactions else (0.0, 0, "")
        return Figures(
            overdue=int(overdue),
            oldest_overdue=oldest,
            cap=CAP,
            transaction_age=float(age),
            transaction=f"thread {thread}, {str(state).lower()}" if transactions else "",
            rows={str(name): (int(live), 0) for name, live in tables_},
        )

    async def changes(self, timeout: float) -> Sequence[tuple[str, str]]:
        return ()

    async def now(self) -> int:
        [[[now]]] = await self._wire.ask(self._sql["clock"])
        return int(now)

    # -- the schema

    async def check(self) -> None:
        await self._wire.connected()
        await self._schema.verify()
        await self._wire.ask(self._sql["rights"])
        tables, variables, clock = await self._wire.ask(self._sql["safety"])
        settings = {str(name).lower(): str(value).upper() for name, value in variables}
        if settings.get("read_only", "OFF") not in ("OFF", "0"):
            raise StoreUnavailable(f"{self._address} is read-only, a replica perhaps; claims need the primary")
        unsafe = [
            f"table {name} is {engine}, not InnoDB: ALTER TABLE {name} ENGINE = InnoDB"
            for name, engine in tables
            if engine != "InnoDB"
        ]
        if settings.get("innodb_flush_log_at_trx_commit") != "1":
            unsafe.append("innodb_flush_log_at_trx_commit is not 1: a crash loses what was confirmed; set it to 1")
        if settings.get("log_bin") in ("ON", "1") and settings.get("binlog_format") == "STATEMENT":
            unsafe.append("binlog_format is STATEMENT: replicas would get other times; set it to ROW or MIXED")
        if int(settings.get("max_allowed_packet", SMALLEST_PACKET)) < SMALLEST_PACKET:
            unsafe.append(f"max_allowed_packet is under {SMALLEST_PACKET}: results do not fit; set it to 16M")
        if not clock[0][1]:
            unsafe.append("the server runs with --sysdate-is-now, so leases lose the time spent waiting for locks")
        if unsafe:
            raise UnsafeStore(f"{self._address} may lose records: {'; '.join(unsafe)}")

    async def migrate(self) -> None:
        await self._schema.migrate()

    async def close(self) -> None:
        await self._wire.close()


list_ = list  # `list` is a method there
