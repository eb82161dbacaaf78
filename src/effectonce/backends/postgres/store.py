"""Records in PostgreSQL 13 or later, also behind PgBouncer in transaction mode.

One statement per batch, each its own transaction: see `backends/postgres/records.sql` for what they promise and why
they are shaped so. Times come from the server's clock; duplicates of finished records write nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec

from effectonce.backends.common.sql_files import inbox_schema, outbox_schema, script, table_prefix
from effectonce.contracts import Capabilities, Contention, Dialect, OutboxPort, Port
from effectonce.errors import InvalidOption
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
    Swept,
)
from effectonce.values.urls import Address, flag

from .codec import (
    claim,
    claim_reply,
    claims,
    cursor,
    int4,
    int8,
    look_reply,
    looks,
    memories,
    record,
    settlement,
    settlements,
    uncursor,
    utf8,
)
from .connection import NamedRow, Param, PostgresClient, Statement
from .outbox import PostgresOutbox
from .session import (
    AsyncOwnSource,
    AsyncPoolSource,
    BorrowedPool,
    ConnectionOptions,
    ConnectionSource,
    PrepareMode,
    SyncOwnSource,
    SyncPoolSource,
)
from .statements import named, queries, words

T = TypeVar("T")

SCHEMA = 1
CAP = 100_000
MAX_ROWS_PER_COUNT = 250_000  # the most that `stats` looks at for the states that have no index
MAX_ROWS_PER_PAGE = 10_000  # the most that one page of `list` looks at
MAX_ROUNDS = 20  # an operation that met a rival is sent again; that many times in a row is a fault
MIGRATION_TIMEOUT_S = 60.0


class PostgresBackend:
    """Records in the tables ``{prefix}_records`` and ``{prefix}_meta``; `migrate` also makes an inbox and an outbox.

    Each port has a connection of its own by URL, or borrows one per operation from an existing pool.

    Options: ``prefix`` (effectonce), ``timeout`` and ``connect_timeout`` (5 s each), ``prepare`` (``auto``: not behind
    a pooler; ``on``, ``off``), ``allow_unsafe`` (no; yes: takes a server that may lose what it has confirmed), and
    libpq's own ``host``, ``application_name``, ``options``, ``channel_binding``, ``gssencmode``, ``sslmode``,
    ``sslcert``, ``sslkey``, ``sslrootcert`` and ``target_session_attrs``.
    """

    capabilities = Capabilities(name="postgresql", lanes=3, notifies=True, notes=True, ordered=True)
    _borrowed_pool: BorrowedPool | None = None

    def __init__(self, address: Address) -> None:
        self._prefix = address.take("prefix", table_prefix, "effectonce")
        self._allow_unsafe = address.take("allow_unsafe", flag, False)
        options = ConnectionOptions(address)
        address.done()
        self._shown, self._timeout = options.shown, options.timeout
        self._prepare: PrepareMode = options.prepare
        self._sync_source: Callable[[], ConnectionSource] = lambda: SyncOwnSource(options)
        self._async_source: Callable[[], ConnectionSource] = lambda: AsyncOwnSource(options)

    @classmethod
    def from_pool(
        cls,
        pool: Any,
        *,
        prefix: str = "effectonce",
        timeout: float = 5.0,
        prepare: PrepareMode = "auto",
        allow_unsafe: bool = False,
    ) -> PostgresBackend:
        """Use a ``psycopg_pool.ConnectionPool`` or ``AsyncConnectionPool``.

        An operation takes a connection and gives it back; whoever opened the pool closes it. Sync callers beside an
        async pool (heartbeats run on a thread) get connections of our own to the same server, and async callers beside
        a sync pool, too. A pool's connections do not listen: waiters poll. A pool that was open before a fork is
        refused in the child.
        """
        backend = cls.__new__(cls)
        backend.capabilities = msgspec.structs.replace(cls.capabilities, notifies=False)
        backend._prefix = table_prefix(prefix)
        backend._shown, backend._timeout, backend._prepare = "the given pool", timeout, prepare
        backend._allow_unsafe = allow_unsafe
        getconn = getattr(pool, "getconn", None)
        if getconn is None:
            raise InvalidOption(f"{type(pool).__name__} is not a psycopg_pool.ConnectionPool or AsyncConnectionPool")
        borrowed = backend._borrowed_pool = BorrowedPool(pool, timeout)
        if asyncio.iscoroutinefunction(getconn):
            backend._async_source = lambda: AsyncPoolSource(borrowed)
            backend._sync_source = lambda: SyncOwnSource(ConnectionOptions.of_pool(pool, timeout))
        else:
            backend._sync_source = lambda: SyncPoolSource(borrowed)
            backend._async_source = lambda: AsyncOwnSource(ConnectionOptions.of_pool(pool, timeout))
        return backend

    def after_fork(self) -> None:
        if self._borrowed_pool is not None:
            self._borrowed_pool.after_fork()

    def sync_port(self) -> Port:
        return self._port(self._sync_source())

    def async_port(self) -> Port:
        return self._port(self._async_source())

    def sync_outbox(self, table: str | None = None) -> OutboxPort:
        return self._outbox(self._sync_source(), table)

    def async_outbox(self, table: str | None = None) -> OutboxPort:
        return self._outbox(self._async_source(), table)

    def _outbox(self, source: ConnectionSource, table: str | None) -> PostgresOutbox:
        return PostgresOutbox(self._client(source), table or f"{self._prefix}_outbox", self._prefix)

    def _port(self, source: ConnectionSource) -> PostgresPort:
        return PostgresPort(self._client(source), queries(self._prefix), self._prefix, self.schema_sql())

    def _client(self, source: ConnectionSource) -> PostgresClient:
        statements = queries(self._prefix)
        return PostgresClient(
            source,
            shown=self._shown,
            timeout=self._timeout,
            prepare=self._prepare,
            schema=SCHEMA,
            allow_unsafe=self._allow_unsafe,
            facts=statements["facts"],
            settings=statements["session_settings"],
            version=statements["version"],
            durability=statements["durability"],
        )

    def completion(self, op: Settlement) -> tuple[Dialect, Sequence[tuple[str, Sequence[Any]]]]:
        end = ("done", op.retention, op.result, None, False, None, None)
        params = (op.scope, op.key, op.owner, op.token, *end, True)
        return "postgresql", [(named(self._prefix)["settle_one"], params)]

    def schema_sql(self) -> str:
        records = script("backends/postgres/records_schema.sql", **words(self._prefix))
        inbox = inbox_schema("postgresql", f"{self._prefix}_inbox")
        return "\n".join([records, inbox, outbox_schema("postgresql", f"{self._prefix}_outbox")])

    def __repr__(self) -> str:
        return self._shown


class PostgresPort:
    """See `contracts.Port`. It has one `PostgresClient`, and one statement in flight at a time."""

    def __init__(self, client: PostgresClient, queries: dict[str, Statement], prefix: str, schema: str) -> None:
        self._client = client
        self._queries = queries
        self._channel = f"{prefix}_settled".encode()
        self._schema = schema
        #: Which kinds of operation go in one statement, and so in one commit.
        self._sends: Sequence[tuple[set[type], Callable[[Sequence[Any]], Awaitable[Sequence[Reply]]]]] = (
            ({Claim}, self._claim),
            ({Look}, self._look),
            ({Settlement, Note, Renewal}, self._settle),
            ({Remember}, self._remember),
        )

    async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
        kinds = {type(op) for op in batch}
        replies: list[Any] = [None] * len(batch)
        for together, send in self._sends:
            if kinds <= together:
                return await send(batch)
            places = [n for n, op in enumerate(batch) if type(op) in together]
            if places:
                for n, reply in zip(places, await send([batch[n] for n in places]), strict=True):
                    replies[n] = reply
        return replies

    # -- one kind of operation at a time

    async def _claim(self, batch: Sequence[Claim]) -> Sequence[Reply]:
        """New keys and duplicates are answered by one statement. Records that are to be taken over cost another."""
        answers: list[Answer | None] = [None] * len(batch)
        asked: Sequence[int] = range(len(batch))
        for _ in range(MAX_ROUNDS):
            changing = await self._send_claims("claim", batch, asked, answers)
            if changing:
                await self._send_claims("claim_existing", batch, sorted(changing), answers)
            asked = [n for n in asked if answers[n] is None]
            if not asked:
                return answers  # type: ignore[return-value]
        raise self._contention("claims", len(asked))

    async def _send_claims(
        self, name: str, batch: Sequence[Claim], asked: Sequence[int], answers: list[Answer | None]
    ) -> list[int]:
        """Send the claims at the places ``asked`` and note their ``answers``. Gives the places of those whose decision
        changes the record; the statement may be silent about others, which met a rival."""
        if len(batch) == 1 and name == "claim":
            rows = await self._client.execute(self._queries["claim_one"], claim(batch[0]))
        else:
            rows = await self._client.execute(self._queries[name], claims([batch[n] for n in asked]))
        changing: list[int] = []
        for row in rows:
            place, answer = claim_reply(row)
            if answer is None:
                changing.append(asked[place])
            else:
                answers[asked[place]] = answer
        return changing

    async def _look(self, batch: Sequence[Look]) -> Sequence[Reply]:
        replies = dict(map(look_reply, await self._client.execute(self._queries["look"], looks(batch))))
        return [replies[n] for n in range(len(batch))]

    async def _settle(self, batch: Sequence[Settlement | Note | Renewal]) -> Sequence[Reply]:
        if len(batch) == 1:
            rows = await self._client.execute(self._queries["settle_one"], settlement(batch[0]))
        else:
            rows = await self._client.execute(self._queries["settle"], settlements(batch))
        if len(rows) == len(batch):
            return [True] * len(batch)
        settled = {n - 1 for (n,) in rows}
        others = [op for n, op in enumerate(batch) if n not in settled]
        replies = iter(await self._apply("settle_locked", others, settlements, without_row=False))
        return [n in settled or next(replies) for n in range(len(batch))]

    async def _remember(self, batch: Sequence[Remember]) -> Sequence[Reply]:
        return await self._apply("remember", batch, memories, without_row=None)

    async def _apply(
        self,
        name: str,
        batch: Sequence[T],
        encode: Callable[[Sequence[T]], list[Param]],
        *,
        without_row: bool | None,
    ) -> Sequence[bool]:
        """Whether each operation was applied. Those that met a rival (NULL) are sent again. ``without_row`` is the
        reply where the statement has no row; None: that one met a rival, too."""
        replies: list[bool | None] = [None] * len(batch)
        asked: Sequence[int] = range(len(batch))
        for _ in range(MAX_ROUNDS):
            for n in asked:
                replies[n] = without_row
            for n, applied in await self._client.execute(self._queries[name], encode([batch[n] for n in asked])):
                replies[asked[n - 1]] = applied
            asked = [n for n in asked if replies[n] is None]
            if not asked:
                return replies  # type: ignore[return-value]
        raise self._contention(f"operations ({name})", len(asked))

    def _contention(self, what: str, count: int) -> Contention:
        return Contention(
            f"{count} {what} lost the race for their rows {MAX_ROUNDS} times in a row; "
            "retry, or lower the concurrency on these keys"
        )

    # -- people and the sweeper

    async def get(self, scope: str, key: str) -> Record | None:
        rows = await self._ask("get", utf8(scope), utf8(key))
        return record(rows[0]) if rows else None

    async def list(self, query: Query) -> Page:
        """By (scope, key). A page that had to pass over many records of other states may be short, or empty, and
        still have a cursor."""
        after = query.after if query.cursor is None and query.after is not None else uncursor(query.cursor)
        scope = None if query.scope is None else utf8(query.scope)
        state = None if query.state is None else query.state.encode()
        name = "list_attention" if query.state in ("free", "failed", "in_doubt") else "list"
        name = "list_unfinished" if query.unfinished else name
        found: list[Record] = []
        looked = 0
        while True:
            # One more than is asked for tells whether there is another page.
            chunk = query.limit + 1 if looked == 0 else max(query.limit + 1, 1_000)
            rows = await self._ask(name, scope, state, utf8(after[0]), utf8(after[1]), int4.pack(chunk))
            for row in rows:
                if row["wanted"]:
                    if len(found) == query.limit:
                        return Page(found, cursor(found[-1].scope, found[-1].key))
                    found.append(record(row))
            looked += len(rows)
            if len(rows) < chunk:
                return Page(found)
            after = rows[-1]["scope"], rows[-1]["key"]
            if looked >= MAX_ROWS_PER_PAGE and len(found) < query.limit:
                return Page(found, cursor(*after))

    async def stats(self) -> Stats:
        """``claimed`` and ``done`` are counted among the 250,000 records that expire last; where there are more, they
        are ``approximate``: others with a shorter retention were not looked at."""
        counts = dict.fromkeys(("claimed", "done", "failed", "in_doubt", "free"), 0)
        times: dict[str, int | None] = {}
        partial = False
        for row in await self._ask("stats", int4.pack(CAP), int4.pack(MAX_ROWS_PER_COUNT)):
            state = row["state"]
            times[state] = row["least"] or None
            if state in counts:
                counts[state] = min(CAP, counts[state] + row["count"])
            elif state == "scanned":
                partial = row["count"] >= MAX_ROWS_PER_COUNT
        return Stats(
            counts=counts,
            cap=CAP,
            oldest_in_doubt=times.get("in_doubt"),
            swept_at=times.get("swept_at"),
            approximate=tuple(s for s in ("claimed", "done") if partial and counts[s] < CAP),
        )

    async def forget(self, scope: str, key: str, retention: int) -> bool:
        return await self._decide("forget", utf8(scope), utf8(key), int8.pack(retention))

    async def resolve(self, scope: str, key: str, resolution: Resolution) -> bool:
        given = (resolution.state.encode(), int8.pack(resolution.retention), resolution.result, resolution.error)
        return await self._decide("resolve", utf8(scope), utf8(key), *given)

    async def _decide(self, name: str, *params: Param) -> bool:
        for _ in range(MAX_ROUNDS):
            rows = await self._ask(name, *params)
            if not rows:
                return False
            if rows[0]["applied"]:
                return True
        raise self._contention(name, 1)

    async def sweep(self, limit: int) -> Swept:
        (swept,) = await self._ask("sweep", int4.pack(limit))
        return Swept(**swept)

    async def figures(self, before: int) -> Figures:
        (overdue,) = await self._ask("figures_overdue", int8.pack(before), int4.pack(CAP))
        transactions = await self._ask("figures_transaction")
        return Figures(
            overdue=overdue["count"],
            oldest_overdue=overdue["oldest"],
            cap=CAP,
            transaction_age=transactions[0]["age"] / 1e6 if transactions else 0.0,
            transaction=transactions[0]["who"] if transactions else "",
            rows={row["name"]: (row["live"], row["dead"]) for row in await self._ask("figures_rows")},
            settings={row["name"]: row["setting"] for row in await self._ask("figures_settings")},
        )

    async def _ask(self, name: str, *params: Param) -> Sequence[NamedRow]:
        return await self._client.query(self._queries[name], params)

    # -- the store itself

    async def changes(self, timeout: float) -> Sequence[tuple[str, str]]:
        return [
            msgspec.json.decode(payload, type=tuple[str, str])
            for payload in await self._client.notifications(self._channel, timeout)
        ]

    async def now(self) -> int:
        (row,) = await self._client.query(self._queries["now"], schema=False)
        return int(row["now"])

    async def check(self) -> None:
        await self._client.check(self._queries["denied"])

    async def migrate(self) -> None:
        """One transaction under a lock of its own; whoever comes second finds the tables there."""
        lock = f"hashtextextended('effectonce migrate {self._channel.decode()}', 0)"
        await self._client.script(
            "BEGIN; SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0; "
            "SET LOCAL client_min_messages = error; "
            f"SELECT pg_advisory_xact_lock({lock}); {self._schema}; COMMIT",
            MIGRATION_TIMEOUT_S,
        )
        await self._ask("version")  # which looks at it

    async def close(self) -> None:
        await self._client.close()
