"""Records in PostgreSQL 13 or later, also behind PgBouncer in transaction mode.

A batch is one statement, which is its own transaction. `backends/postgres/records.sql` explains what the statements
promise, and the reasons for their form. Times come from the server's clock; duplicates of finished records write
nothing.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from effectonce.backends.common.list_cursor import make_cursor, parse_cursor
from effectonce.backends.common.sql_store import record_from
from effectonce.contracts import Capabilities, Contention, Dialect, InboxPort, OutboxPort, Port
from effectonce.core.sql_files import store_schema, table_prefix
from effectonce.errors import InvalidOption
from effectonce.record import (
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
from effectonce.values.urls import Address, flag

from .client import ClientSettings, NamedRow, Param, PostgresClient
from .codec import (
    CLAIM_FIELDS,
    LOOK_FIELDS,
    REMEMBER_FIELDS,
    completion_params,
    encode_many,
    encode_one,
    encode_settlement,
    encode_settlements,
    int4,
    int8,
    read_claim_answer,
    read_look_answer,
    utf8,
)
from .connection import (
    BlockingWaiter,
    BorrowedPool,
    ConnectionSource,
    LoopWaiter,
    OwnConnection,
    PooledConnections,
    Waiter,
)
from .conninfo import options_of_pool, take_options
from .inbox import PostgresInbox
from .newest_first import list_newest_first
from .outbox import PostgresOutbox
from .statements import load_statements, prepared_statements

MAX_COUNT: Final = 100_000  # the most that `stats` counts of a state
MAX_ROWS_PER_COUNT: Final = 250_000  # the most that `stats` looks at for the states that have no index
MAX_ROWS_PER_PAGE: Final = 10_000  # the most that one page of `list` looks at
MIN_ROWS_PER_ROUND: Final = 1_000  # ... in statements of at least so many, after the first
MAX_ROUNDS: Final = 20  # how often an operation is sent again, since a rival changed its record meanwhile
MIGRATION_TIMEOUT_S: Final = 60.0


class PostgresBackend:
    """Records in the tables ``{prefix}_records`` and ``{prefix}_meta``; `migrate` also makes an inbox and an outbox.

    Each port has a connection of its own. Options: ``prefix`` (effectonce), ``timeout`` and ``connect_timeout`` (5 s
    each), ``prepare`` (``auto``: not behind a pooler; ``on``, ``off``), ``allow_unsafe`` (no; yes: takes a server that
    may lose what it has confirmed); those for TLS: ``tls``, ``ca_file``, ``cert_file``, ``key_file``, ``verify``,
    ``server_name``; and libpq's own (``host``, ``target_session_attrs``, ``keepalives_idle``, ``service``, …), as its
    manual has them. Hosts are written as for libpq: ``h1:5432,h2:5433``, ``%2Frun%2Fpostgresql`` for a socket.
    """

    capabilities = Capabilities(name="postgresql", notifies=True, notes=True, ordered=True)

    def __init__(self, address: Address) -> None:
        self._prefix = address.take("prefix", table_prefix, "effectonce")
        allow_unsafe = address.take("allow_unsafe", flag, False)
        options = self._options = take_options(address)
        address.refuse_unknown_options()
        self._settings = ClientSettings(options.address, options.timeout, options.prepare, allow_unsafe)

    def _source(self, waiter: Waiter) -> ConnectionSource:
        return OwnConnection(waiter, self._options)

    def sync_port(self) -> Port:
        return self._port(self._source(BlockingWaiter()))

    def async_port(self) -> Port:
        return self._port(self._source(LoopWaiter()))

    def _port(self, source: ConnectionSource) -> PostgresPort:
        return PostgresPort(self._client(source), self._prefix)

    def sync_outbox(self, table: str | None = None) -> OutboxPort:
        return self._outbox(self._source(BlockingWaiter()), table)

    def async_outbox(self, table: str | None = None) -> OutboxPort:
        return self._outbox(self._source(LoopWaiter()), table)

    def sync_inbox(self, table: str | None = None) -> InboxPort:
        return PostgresInbox(self._client(self._source(BlockingWaiter())), table or f"{self._prefix}_inbox")

    def _outbox(self, source: ConnectionSource, table: str | None) -> PostgresOutbox:
        return PostgresOutbox(self._client(source), table or f"{self._prefix}_outbox", self._prefix)

    def _client(self, source: ConnectionSource) -> PostgresClient:
        return PostgresClient(source, self._settings, prepared_statements(self._prefix))

    def completion(self, op: Settlement) -> tuple[Dialect, Sequence[tuple[str, Sequence[Any]]]]:
        return "postgresql", [(load_statements(self._prefix)["settle_one"], completion_params(op))]

    def schema_sql(self) -> str:
        return store_schema("postgresql", self._prefix)

    def __repr__(self) -> str:
        return self._settings.address


class PostgresPoolBackend(PostgresBackend):
    """The same over a ``psycopg_pool.ConnectionPool`` or ``AsyncConnectionPool``, which its owner closes.

    Each operation takes a connection from the pool and gives it back. Sync callers beside an async pool (heartbeats run
    on a thread) get connections of our own to the same server, and async callers beside a sync pool, too. A pool's
    connections do not listen, so waiters poll. A pool that was open before a fork is refused in the child.
    """

    capabilities = msgspec.structs.replace(PostgresBackend.capabilities, notifies=False)

    def __init__(
        self, pool: Any, *, prefix: str = "effectonce", timeout: float = 5.0, allow_unsafe: bool = False
    ) -> None:
        getconn = getattr(pool, "getconn", None)
        if getconn is None:
            raise InvalidOption(f"{type(pool).__name__} is not a psycopg_pool.ConnectionPool or AsyncConnectionPool")
        self._prefix = table_prefix(prefix)
        self._settings = ClientSettings("the given pool", timeout, "auto", allow_unsafe)
        self._pool = BorrowedPool(pool, timeout)
        self._pool_waiter = LoopWaiter if asyncio.iscoroutinefunction(getconn) else BlockingWaiter

    def _source(self, waiter: Waiter) -> ConnectionSource:
        if isinstance(waiter, self._pool_waiter):
            return PooledConnections(waiter, self._pool)
        return OwnConnection(waiter, options_of_pool(self._pool.pool, self._settings.timeout))

    def after_fork(self) -> None:
        self._pool.after_fork()


class PostgresPort:
    """See `contracts.Port`. It has one `PostgresClient`, and one statement in flight at a time."""

    def __init__(self, client: PostgresClient, prefix: str) -> None:
        self._client = client
        self._prefix = prefix
        self.statements = prepared_statements(prefix)
        self._channel = f"{prefix}_settled".encode()
        #: The method for each kind of operation. Those of one method go in one statement.
        self._appliers: Mapping[type, Callable[[Sequence[Any]], Awaitable[Sequence[Reply]]]] = {
            Claim: self._claim,
            Look: self._look,
            Settlement: self._settle,
            Note: self._settle,
            Renewal: self._settle,
            Remember: self._remember,
        }

    async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
        positions_by_method = defaultdict(list)
        for n, op in enumerate(batch):
            positions_by_method[self._appliers[type(op)]].append(n)
        replies: list[Any] = [None] * len(batch)
        for apply, positions in positions_by_method.items():
            for n, reply in zip(positions, await apply([batch[n] for n in positions]), strict=True):
                replies[n] = reply
        return replies

    # -- one kind of operation at a time

    async def _claim(self, batch: Sequence[Claim]) -> Sequence[Reply]:
        """One statement answers claims of new keys and of finished records. Records that a claim changes need a second
        one."""

        async def send(positions: Sequence[int]) -> dict[int, Reply | None]:
            if len(batch) == 1:
                name, params = "claim_one", encode_one(CLAIM_FIELDS, batch[0])
            else:
                name, params = "claim", encode_many(CLAIM_FIELDS, [batch[n] for n in positions])
            answers = await self._send_claims(name, params, positions)
            changing = sorted(n for n, answer in answers.items() if answer is None)
            if changing:
                params = encode_many(CLAIM_FIELDS, [batch[n] for n in changing])
                answers.update(await self._send_claims("claim_existing", params, changing))
            return answers

        return await self._send_until_answered("claims", len(batch), send)

    async def _send_claims(self, name: str, params: list[Param], positions: Sequence[int]) -> dict[int, Reply | None]:
        """Return the answers by position; None: the decision still has to change the record. A claim whose record a
        rival has changed meanwhile may have no answer."""
        rows = await self._client.execute(self.statements[name], params)
        return {positions[n]: answer for n, answer in map(read_claim_answer, rows)}

    async def _look(self, batch: Sequence[Look]) -> Sequence[Reply]:
        rows = await self._client.execute(self.statements["look"], encode_many(LOOK_FIELDS, batch))
        answers = dict(map(read_look_answer, rows))
        return [answers[n] for n in range(len(batch))]

    async def _settle(self, batch: Sequence[Settlement | Note | Renewal]) -> Sequence[Reply]:
        if len(batch) == 1:
            name, params = "settle_one", encode_settlement(batch[0])
        else:
            name, params = "settle", encode_settlements(batch)
        rows = await self._client.execute(self.statements[name], params)
        if len(rows) == len(batch):
            return [True] * len(batch)
        settled = {n - 1 for (n,) in rows}
        others = [op for n, op in enumerate(batch) if n not in settled]

        async def send(positions: Sequence[int]) -> dict[int, Reply | None]:
            params = encode_settlements([others[n] for n in positions])
            applied = await self._send("settle_locked", params, positions)
            return {n: applied.get(n, False) for n in positions}  # no row: it is refused

        replies = iter(await self._send_until_answered("settlements", len(others), send))
        return [n in settled or next(replies) for n in range(len(batch))]

    async def _remember(self, batch: Sequence[Remember]) -> Sequence[Reply]:
        async def send(positions: Sequence[int]) -> dict[int, Reply | None]:
            params = encode_many(REMEMBER_FIELDS, [batch[n] for n in positions])
            return await self._send("remember", params, positions)

        return await self._send_until_answered("successes", len(batch), send)

    async def _send(self, name: str, params: list[Param], positions: Sequence[int]) -> dict[int, Reply | None]:
        """Return whether the operations at ``positions`` were applied; None: a rival changed the record meanwhile."""
        rows = await self._client.execute(self.statements[name], params)
        return {positions[n - 1]: applied for n, applied in rows}

    async def _send_until_answered(
        self, operations: str, count: int, send: Callable[[Sequence[int]], Awaitable[dict[int, Reply | None]]]
    ) -> Sequence[Reply]:
        """Call ``send`` with the positions of all ``count`` operations, and again with those that got no answer, since
        a rival changed their records while the statement ran."""
        replies: dict[int, Reply | None] = {}
        unanswered: Sequence[int] = range(count)
        for _ in range(MAX_ROUNDS):
            replies.update(await send(unanswered))
            unanswered = [n for n in unanswered if replies.get(n) is None]
            if not unanswered:
                return [replies[n] for n in range(count)]  # type: ignore[misc]
        raise Contention(
            f"{len(unanswered)} {operations} lost the race for their rows {MAX_ROUNDS} times in a row; retry, or lower "
            "the concurrency on these keys"
        )

    # -- for operators and the sweeper

    async def get(self, scope: str, key: str) -> Record | None:
        rows = await self._query("get", utf8(scope), utf8(key))
        return record_from(rows[0]) if rows else None

    async def list(self, query: Query) -> Page:
        """Ordered by scope and key, or by the last change. A page that had to pass over many records of other states
        may be short, or empty, and still have a cursor."""
        if query.newest_first:
            return await list_newest_first(self._query, query)
        after = query.after or ("", "")
        if query.cursor is not None:
            after = parse_cursor(query.cursor, by_change=False)[1:]
        scope = None if query.scope is None else utf8(query.scope)
        state = None if query.state is None else query.state.encode()
        name = "list"
        if query.unfinished:
            name = "list_unfinished"
        elif query.state in ("free", "failed", "in_doubt"):
            name = "list_attention"
        records: list[Record] = []
        visited = 0
        while True:
            # One more than the limit, which tells whether there is another page.
            size = query.limit + 1 if visited == 0 else max(query.limit + 1, MIN_ROWS_PER_ROUND)
            rows = await self._query(name, scope, state, utf8(after[0]), utf8(after[1]), int4.pack(size))
            for row in rows:
                if row["wanted"]:
                    if len(records) == query.limit:
                        return Page(records, make_cursor(0, records[-1].scope, records[-1].key))
                    records.append(record_from(row))
            visited += len(rows)
            if len(rows) < size:
                return Page(records)
            after = rows[-1]["scope"], rows[-1]["key"]
            if visited >= MAX_ROWS_PER_PAGE and len(records) < query.limit:
                return Page(records, make_cursor(0, *after))

    async def stats(self) -> Stats:
        """``claimed`` and ``done`` are counted among the 250,000 records that expire last; where there are more, they
        are ``approximate``: others with a shorter retention were not looked at."""
        counts = dict.fromkeys(("claimed", "done", "failed", "in_doubt", "free"), 0)
        times: dict[str, int | None] = {}
        is_partial = False
        for row in await self._query("stats", int4.pack(MAX_COUNT), int4.pack(MAX_ROWS_PER_COUNT)):
            state = row["state"]
            times[state] = row["least"] or None
            if state in counts:
                counts[state] = min(MAX_COUNT, counts[state] + row["count"])
            elif state == "scanned":
                is_partial = row["count"] >= MAX_ROWS_PER_COUNT
        return Stats(
            counts=counts,
            cap=MAX_COUNT,
            oldest_in_doubt=times.get("in_doubt"),
            swept_at=times.get("swept_at"),
            approximate=tuple(state for state in ("claimed", "done") if is_partial and counts[state] < MAX_COUNT),
        )

    async def forget(self, scope: str, key: str, retention_us: int) -> bool:
        return await self._decide("forget", utf8(scope), utf8(key), int8.pack(retention_us))

    async def resolve(self, scope: str, key: str, resolution: Resolution) -> bool:
        decision = (resolution.state.encode(), int8.pack(resolution.retention_us), resolution.result, resolution.error)
        return await self._decide("resolve", utf8(scope), utf8(key), *decision)

    async def _decide(self, name: str, *params: Param) -> bool:
        async def send(positions: Sequence[int]) -> dict[int, Reply | None]:
            rows = await self._query(name, *params)
            return {0: rows[0]["applied"] if rows else False}

        (applied,) = await self._send_until_answered(f"decision ({name})", 1, send)
        return applied is True

    async def sweep(self, limit: int) -> SweepResult:
        (swept,) = await self._query("sweep", int4.pack(limit))
        return SweepResult(**swept)

    async def figures(self, before: int) -> Figures:
        (overdue,) = await self._query("figures_overdue", int8.pack(before), int4.pack(MAX_COUNT))
        transactions = await self._query("figures_transaction")
        return Figures(
            overdue=overdue["count"],
            oldest_overdue=overdue["oldest"],
            cap=MAX_COUNT,
            transaction_age_s=transactions[0]["age"] / 1e6 if transactions else 0.0,
            transaction=transactions[0]["who"] if transactions else "",
            rows={row["name"]: (row["live"], row["dead"]) for row in await self._query("figures_rows")},
            settings={row["name"]: row["setting"] for row in await self._query("figures_settings")},
        )

    async def _query(self, name: str, *params: Param) -> Sequence[NamedRow]:
        return await self._client.query(self.statements[name], params)

    # -- the store itself

    async def changes(self, timeout: float) -> Sequence[tuple[str, str]]:
        return [
            msgspec.json.decode(payload, type=tuple[str, str])
            for payload in await self._client.notifications(self._channel, timeout)
        ]

    async def now(self) -> int:
        (row,) = await self._client.query(self.statements["now"], schema=False)
        return int(row["now"])

    async def check(self) -> None:
        await self._client.check(self.statements["denied"])

    async def migrate(self) -> None:
        """Create the tables in one transaction, under a lock: the second of two processes waits, and finds them
        there."""
        lock = f"hashtextextended('effectonce migrate {self._prefix}_settled', 0)"
        await self._client.execute_script(
            "BEGIN; SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0; "
            "SET LOCAL client_min_messages = error; "
            f"SELECT pg_advisory_xact_lock({lock}); {store_schema('postgresql', self._prefix)}; COMMIT",
            MIGRATION_TIMEOUT_S,
        )
        await self._query("version")  # verifies the new version, as the first statement on every connection does

    async def close(self) -> None:
        await self._client.close()
