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
    UNCHANGED,
    alone,
    answer,
    answer_alone,
    applied,
    claims,
    cursor,
    fresh_claims,
    granted,
    int4,
    int8,
    looks,
    memories,
    noted_claims,
    notes,
    record,
    renewals,
    settlements,
    uncursor,
    utf8,
)
from .connection import Param, Row, Statement, Wire
from .outbox import PostgresOutbox
from .session import AsyncOwn, AsyncPooled, Lender, Options, Prepare, Source, SyncOwn, SyncPooled
from .statements import named, queries, words

T = TypeVar("T")
R = TypeVar("R", Answer, bool)

SCHEMA = 1
CAP = 100_000
_SCANNED = 250_000  # the most rows `stats` looks at for the states that have no index
_LOOKED_AT = 10_000  # the most rows one page of `list` looks at
_ASKS = 20  # an operation without an answer met a rival; that many in a row is a fault
_MIGRATION_TIMEOUT = 60.0


class PostgresBackend:
    """Records in the tables ``{prefix}_records`` and ``{prefix}_meta``; `migrate` also makes an inbox and an outbox.

    Each port has a connection of its own by URL, or borrows one per operation from an existing pool.

    Options: ``prefix`` (effectonce), ``timeout`` and ``connect_timeout`` (5 s each), ``prepare`` (``auto``: not behind
    a pooler; ``on``, ``off``), ``allow_unsafe`` (no; yes: takes a server that may lose what it has confirmed), and
    libpq's own ``host``, ``application_name``, ``options``, ``channel_binding``, ``gssencmode``, ``sslmode``,
    ``sslcert``, ``sslkey``, ``sslrootcert`` and ``target_session_attrs``.
    """

    capabilities = Capabilities(name="postgresql", lanes=3, notifies=True, notes=True, ordered=True)
    _lender: Lender | None = None

    def __init__(self, address: Address) -> None:
        self._prefix = address.take("prefix", table_prefix, "effectonce")
        self._allow_unsafe = address.take("allow_unsafe", flag, False)
        options = Options(address)
        address.done()
        self._shown, self._timeout = options.shown, options.timeout
        self._prepare: Prepare = options.prepare
        self._sync: Callable[[], Source] = lambda: SyncOwn(options)
        self._async: Callable[[], Source] = lambda: AsyncOwn(options)

    @classmethod
    def from_pool(
        cls,
        pool: Any,
        *,
        prefix: str = "effectonce",
        timeout: float = 5.0,
        prepare: Prepare = "auto",
        allow_unsafe: bool = False,
    ) -> PostgresBackend:
        """Use a ``psycopg_pool.ConnectionPool`` or ``AsyncConnectionPool``.

        An operation takes a connection and gives it back; whoever opened the pool closes it. The other colour gets
        connections of ours to the same server (heartbeats run on a thread, beside an async pool too). A pool's
        connections do not listen: waiters poll. A pool that was open before a fork is refused in the child.
        """
        backend = cls.__new__(cls)
        backend.capabilities = msgspec.structs.replace(cls.capabilities, notifies=False)
        backend._prefix = table_prefix(prefix)
        backend._shown, backend._timeout, backend._prepare = "the given pool", timeout, prepare
        backend._allow_unsafe = allow_unsafe
        getconn = getattr(pool, "getconn", None)
        if getconn is None:
            raise InvalidOption(f"{type(pool).__name__} is not a psycopg_pool.ConnectionPool or AsyncConnectionPool")
        lender = backend._lender = Lender(pool, timeout)
        if asyncio.iscoroutinefunction(getconn):
            backend._async = lambda: AsyncPooled(lender)
            backend._sync = lambda: SyncOwn(Options.of_pool(pool, timeout))
        else:
            backend._sync = lambda: SyncPooled(lender)
            backend._async = lambda: AsyncOwn(Options.of_pool(pool, timeout))
        return backend

    def after_fork(self) -> None:
        if self._lender is not None:
            self._lender.after_fork()

    def sync_port(self) -> Port:
        return self._port(self._sync())

    def async_port(self) -> Port:
        return self._port(self._async())

    def sync_outbox(self, table: str | None = None) -> OutboxPort:
        return self._outbox(self._sync(), table)

    def async_outbox(self, table: str | None = None) -> OutboxPort:
        return self._outbox(self._async(), table)

    def _outbox(self, source: Source, table: str | None) -> PostgresOutbox:
        return PostgresOutbox(self._wire(source), table or f"{self._prefix}_outbox", self._prefix)

    def _port(self, source: Source) -> PostgresPort:
        return PostgresPort(self._wire(source), queries(self._prefix), self._prefix, self.schema_sql())

    def _wire(self, source: Source) -> Wire:
        asked = queries(self._prefix)
        return Wire(
            source,
            shown=self._shown,
            timeout=self._timeout,
            prepare=self._prepare,
            schema=SCHEMA,
            allow_unsafe=self._allow_unsafe,
            facts=asked["facts"],
            session=asked["session"],
            version=asked["version"],
            durability=asked["durability"],
        )

    def completion(self, op: Settlement) -> tuple[Dialect, Sequence[tuple[str, Sequence[Any]]]]:
        params = (op.scope, op.key, op.owner, op.token, op.retention, op.result)
        return "postgresql", [(named(self._prefix)["complete"], params)]

    def schema_sql(self) -> str:
        records = script("backends/postgres/records_schema.sql", **words(self._prefix))
        inbox = inbox_schema("postgresql", f"{self._prefix}_inbox")
        return "\n".join([records, inbox, outbox_schema("postgresql", f"{self._prefix}_outbox")])

    def __repr__(self) -> str:
        return self._shown


class PostgresPort:
    """See `contracts.Port`. One `Wire`, and what to send over it."""

    def __init__(self, wire: Wire, queries: dict[str, Statement], prefix: str, schema: str) -> None:
        self._wire = wire
        self._queries = queries
        self._channel = f"{prefix}_settled".encode()
        self._schema = schema
        self._meets = False  # the last batch of claims met records: `claim_fresh` would be a round trip too many
        #: Which kinds of operation go in one statement, and so in one commit.
        self._sends: Sequence[tuple[set[type], Callable[[Sequence[Any]], Awaitable[Sequence[Reply]]]]] = (
            ({Claim}, self._claim),
            ({Look}, self._look),
            ({Settlement, Note}, self._settle),
            ({Renewal}, self._renew),
            ({Remember}, self._remember),
        )

    async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
        if len(batch) == 1 and (reply := await self._alone(batch[0])) is not None:
            return (reply,)
        kinds = {type(op) for op in batch}
        replies: list[Any] = [None] * len(batch)
        for sent, send in self._sends:
            if kinds <= sent:
                return await send(batch)
            places = [n for n, op in enumerate(batch) if type(op) in sent] if kinds & sent else ()
            if places:
                for n, reply in zip(places, await send([batch[n] for n in places]), strict=True):
                    replies[n] = reply
        return replies

    async def _alone(self, op: Batchable) -> Reply | None:
        """The reply to an operation that goes by itself; None: the statements for many have to say."""
        if (asked := alone(op)) is None:
            return None
        name, params = asked
        for row in await self._wire.execute(self._queries[name], params):
            return answer_alone(op, row)
        if type(op) is Claim:
            for row in await self._wire.execute(self._queries["seen_alone"], [*params[:3], op.fingerprints]):
                if row[1] in UNCHANGED:
                    return answer(row)
        return None

    # -- one kind of operation at a time

    async def _claim(self, batch: Sequence[Claim]) -> Sequence[Reply]:
        known: list[Answer | None] | None = None
        if not self._meets:
            rows = await self._wire.execute(self._queries["claim_fresh"], fresh_claims(batch))
            tokens = {(scope, key, owner): token for scope, key, owner, token in rows}
            if len(tokens) == len(batch):
                return [granted(op, tokens[op.scope, op.key, op.owner]) for op in batch]
            found = [tokens.get((op.scope, op.key, op.owner)) for op in batch]
            known = [None if token is None else granted(op, token) for op, token in zip(batch, found, strict=True)]
        noted = any(op.note is not None for op in batch)
        statement, params = ("claim_noted", noted_claims) if noted else ("claim", claims)
        replies = await self._insist(self._queries[statement], batch, params, answer, known)
        self._meets = any(reply.kind != "claimed" or reply.attempts > 1 for reply in replies)
        return replies

    async def _look(self, batch: Sequence[Look]) -> Sequence[Reply]:
        rows = await self._wire.execute(self._queries["look"], looks(batch))
        replies: list[Any] = [None] * len(batch)
        for row in rows:
            replies[row[0] - 1] = answer(row)
        return replies

    async def _settle(self, batch: Sequence[Settlement | Note]) -> Sequence[Reply]:
        kept = [op for op in batch if type(op) is Note]
        if len(kept) == len(batch):
            rows = await self._wire.execute(self._queries["note_claimed"], notes(kept))
        else:
            rows = await self._wire.execute(self._queries["settle_claimed"], settlements(batch))
        if len(rows) == len(batch):
            return [True] * len(batch)
        known: list[bool | None] = [None] * len(batch)
        for row in rows:
            known[row[0] - 1] = True
        return await self._insist(self._queries["settle"], batch, settlements, applied, known, otherwise=False)

    async def _renew(self, batch: Sequence[Renewal]) -> Sequence[Reply]:
        return await self._insist(self._queries["renew"], batch, renewals, applied, otherwise=False)

    async def _remember(self, batch: Sequence[Remember]) -> Sequence[Reply]:
        return await self._insist(self._queries["remember"], batch, memories, applied)

    async def _insist(
        self,
        statement: Statement,
        batch: Sequence[T],
        params: Callable[[Sequence[T]], list[Param]],
        read: Callable[[Row], R | None],
        known: list[R | None] | None = None,
        *,
        otherwise: R | None = None,
    ) -> Sequence[R]:
        """A reply to each, asking again those that met a rival; not those whose reply is ``known``. ``otherwise`` is
        the reply where there is no row; without one, that means to ask again, too."""
        replies: list[R | None] = known or [None] * len(batch)
        left = [n for n, reply in enumerate(replies) if reply is None]
        for _ in range(_ASKS):
            for n in left:
                replies[n] = otherwise
            ops = batch if len(left) == len(batch) else [batch[n] for n in left]
            for row in await self._wire.execute(statement, params(ops)):
                replies[left[row[0] - 1]] = read(row)
            left = [n for n in left if replies[n] is None]
            if not left:
                return replies  # type: ignore[return-value]
        raise Contention(f"{len(left)} operations met a rival {_ASKS} times in a row")

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
                if row[-1]:
                    if len(found) == query.limit:
                        return Page(found, cursor(found[-1].scope, found[-1].key))
                    found.append(record(row))
            looked += len(rows)
            if len(rows) < chunk:
                return Page(found)
            after = rows[-1][0], rows[-1][1]
            if looked >= _LOOKED_AT and len(found) < query.limit:
                return Page(found, cursor(*after))

    async def stats(self) -> Stats:
        """``claimed`` and ``done`` are counted among the 250,000 records that expire last; where there are more, they
        are ``approximate``: others with a shorter retention were not looked at."""
        counts = dict.fromkeys(("claimed", "done", "failed", "in_doubt", "free"), 0)
        times: dict[str, int | None] = {}
        partial = False
        for state, count, least in await self._ask("stats", int4.pack(CAP), int4.pack(_SCANNED)):
            times[state] = least or None
            if state in counts:
                counts[state] = min(CAP, counts[state] + count)
            elif state == "scanned":
                partial = count >= _SCANNED
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
        for _ in range(_ASKS):
            rows = await self._ask(name, *params)
            if not rows:
                return False
            if rows[0][0]:
                return True
        raise Contention(f"{name} met a rival {_ASKS} times in a row")

    async def sweep(self, limit: int) -> Swept:
        ((deleted, lapsed, more),) = await self._ask("sweep", int4.pack(limit))
        return Swept(deleted, lapsed, more)

    async def figures(self, before: int) -> Figures:
        ((overdue, oldest),) = await self._ask("figures_overdue", int8.pack(before), int4.pack(CAP))
        transactions = await self._ask("figures_transaction")
        return Figures(
            overdue=overdue,
            oldest_overdue=oldest,
            cap=CAP,
            transaction_age=transactions[0][0] / 1e6 if transactions else 0.0,
            transaction=transactions[0][1] if transactions else "",
            rows={name: (live, dead) for name, live, dead in await self._ask("figures_rows")},
            settings=dict(await self._ask("figures_settings")),
        )

    async def _ask(self, name: str, *params: Param) -> Sequence[Row]:
        return await self._wire.execute(self._queries[name], params, prepare=False)

    # -- the store itself

    async def changes(self, timeout: float) -> Sequence[tuple[str, str]]:
        return [
            msgspec.json.decode(payload, type=tuple[str, str])
            for payload in await self._wire.notifications(self._channel, timeout)
        ]

    async def now(self) -> int:
        ((now,),) = await self._wire.execute(self._queries["now"], schema=False)
        return int(now)

    async def check(self) -> None:
        await self._wire.check(self._queries["denied"])

    async def migrate(self) -> None:
        """One transaction under a lock of its own; whoever comes second finds the tables there."""
        lock = f"hashtextextended('effectonce migrate {self._channel.decode()}', 0)"
        await self._wire.script(
            "BEGIN; SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0; "
            "SET LOCAL client_min_messages = error; "
            f"SELECT pg_advisory_xact_lock({lock}); {self._schema}; COMMIT",
            _MIGRATION_TIMEOUT,
        )
        await self._ask("version")  # which looks at it

    async def close(self) -> None:
        await self._wire.close()
