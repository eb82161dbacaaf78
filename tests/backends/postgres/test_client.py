"""Which servers are refused, and which connections are kept after an error, with a stand-in for the server."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg import pq

from effectonce.backends.postgres.client import ClientSettings, PostgresClient, Statement
from effectonce.contracts import ConnectionLost, Contention
from effectonce.core.run_sync import run_sync
from effectonce.errors import (
    ConfigurationError,
    InvalidKey,
    SchemaMismatch,
    SchemaMissing,
    StoreUnavailable,
    UnsafeStore,
)

NAMES = ("facts", "version", "durability", "session_settings")
STATEMENTS = {name: Statement(name) for name in NAMES}
DENIED, WORK = Statement("denied"), Statement("work")

FACTS = {"version": 13_00_00, "replica": False, "encoding": "UTF8", "pid": 7, "isolation": "read committed"}
ROWS: dict[bytes, dict[str, Any]] = {
    b"facts": FACTS,
    b"version": {"stored": 1, "oldest": 1},
    b"denied": {"lacking": None, "read_only": False},
    b"durability": {"unsynced": False, "answers_early": False, "unlogged": None},
}


class Connection:
    """A connection, and the state of its session."""

    def __init__(self) -> None:
        self.pgconn = SimpleNamespace(
            backend_pid=7,
            status=pq.ConnStatus.OK,
            transaction_status=pq.TransactionStatus.IDLE,
            parameter_status=lambda name: self.client_encoding,
            send_query=self.sent_queries,
        )
        self.client_encoding = b"UTF8"
        self.queries: list[bytes] = []
        self.verified = self.schema_verified = False
        self.behind_pooler = self.may_prepare = False
        self.read_committed = True

    def sent_queries(self, sql: bytes) -> None:
        self.queries.append(sql)
        if sql == b"ROLLBACK":
            self.pgconn.transaction_status = pq.TransactionStatus.IDLE


class Source:
    """Gives one connection, and notes what becomes of it."""

    connect_timeout = 3.0

    def __init__(self, *, exclusive: bool = True) -> None:
        self.exclusive = exclusive
        self.connection = Connection()
        self.returned = self.dropped = 0

    async def take(self) -> Connection:
        return self.connection

    async def give_back(self, connection: Connection) -> None:
        self.returned += 1

    async def drop(self, connection: Connection) -> None:
        self.dropped += 1


class Client(PostgresClient):
    """A client whose server answers by ``rows``; the statement ``work`` fails with ``error``."""

    def __init__(self, source: Any, *, prepare: Any = "auto", allow_unsafe: bool = False, **changes: Any) -> None:
        settings = ClientSettings(address="pg://h", timeout=5.0, prepare=prepare, allow_unsafe=allow_unsafe)
        super().__init__(source, settings, STATEMENTS)
        self.source: Source = source
        self.rows = {name: {**row, **changes.get(name.decode(), {})} for name, row in ROWS.items()}
        self.error: BaseException | None = None
        self.ran: list[bytes] = []
        self.params: dict[bytes, Any] = {}

    async def _fetch_one(self, connection: Any, statement: Statement, deadline: float) -> Any:
        await self._run(connection, statement, (), deadline, False)
        return self.rows[statement.sql]

    async def _run(self, connection: Any, statement: Statement, params: Any, deadline: float, prepare: bool) -> Any:
        self.ran.append(statement.sql)
        self.params[statement.sql] = params
        if statement is WORK and self.error is not None:
            raise self.error

    async def _send(self, connection: Any, send: Any, deadline: float) -> Any:
        send()

    def work(self) -> None:
        async def run(connection: Any, deadline: float) -> None:
            await self._run_alone(connection, WORK, (), deadline, True)

        run_sync(self._with_connection(run, schema=True))


def client_with(**changes: Any) -> Client:
    return Client(Source(), **changes)


# -- which servers are refused


def test_a_server_and_its_tables_are_verified_once_on_each_connection() -> None:
    client = client_with()
    client.work()
    client.work()
    assert client.ran == [b"facts", b"session_settings", b"version", b"work", b"work"]
    assert client.params[b"session_settings"] == [b"5000", b"1000"]  # a lock is given up before the statement
    assert (client.source.returned, client.source.dropped) == (2, 0)


@pytest.mark.parametrize(
    ("facts", "kind", "said"),
    [
        ({"version": 12_99_99}, UnsafeStore, "is PostgreSQL 12;"),
        ({"replica": True}, StoreUnavailable, "read-only replica"),
        ({"encoding": "LATIN1"}, UnsafeStore, "encoded in LATIN1"),
    ],
)
def test_a_server_that_cannot_keep_records_is_refused(facts: Any, kind: type[Exception], said: str) -> None:
    client = client_with(facts=facts)
    with pytest.raises(kind, match=said):
        client.work()
    assert client.source.dropped == 1


def test_a_pool_with_another_encoding_is_refused() -> None:
    client = client_with()
    client.source.connection.client_encoding = b"LATIN1"
    with pytest.raises(ConfigurationError, match="client_encoding"):
        client.work()
    ascii_database = client_with(facts={"encoding": "SQL_ASCII"})
    ascii_database.work()


@pytest.mark.parametrize(
    ("version", "kind"),
    [({"stored": None, "oldest": None}, SchemaMissing), ({"stored": 2, "oldest": 2}, SchemaMismatch)],
)
def test_tables_of_another_version_are_refused(version: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        client_with(version=version).work()


@pytest.mark.parametrize(
    ("prepare", "pid", "may_prepare"),
    [("auto", 7, True), ("auto", 8, False), ("on", 7, True), ("on", 8, True), ("off", 7, False)],
)
def test_statements_are_prepared_unless_a_pooler_is_between(prepare: str, pid: int, may_prepare: bool) -> None:
    client = client_with(prepare=prepare, facts={"pid": pid})
    client.work()
    connection = client.source.connection
    assert (connection.behind_pooler, connection.may_prepare) == (pid != 7, may_prepare)


@pytest.mark.parametrize(("pid", "exclusive"), [(8, True), (7, False)])
def test_a_session_that_others_use_keeps_its_settings(pid: int, exclusive: bool) -> None:
    client = Client(Source(exclusive=exclusive), facts={"pid": pid, "isolation": "serializable"})
    client.work()
    assert b"session_settings" not in client.ran
    queries = client.source.connection.queries
    assert queries == [b"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE", b"COMMIT"]


def test_a_session_of_our_own_needs_no_begin() -> None:
    client = client_with(facts={"isolation": "serializable"})
    client.work()
    assert client.source.connection.queries == []


# -- the check


def test_a_safe_server_passes_and_is_verified_again() -> None:
    client = client_with()
    for _ in range(2):
        run_sync(client.check(DENIED))
    assert client.ran == [b"facts", b"session_settings", b"version", b"denied", b"durability"] * 2


@pytest.mark.parametrize(
    ("changes", "kind", "said"),
    [
        ({"denied": {"lacking": "DELETE"}}, ConfigurationError, "lacks DELETE"),
        ({"denied": {"read_only": True}}, ConfigurationError, "read-only for this user"),
        ({"durability": {"unsynced": True}}, UnsafeStore, "fsync=off"),
        ({"durability": {"answers_early": True}}, UnsafeStore, "synchronous_commit"),
        ({"durability": {"unlogged": "eo_records"}}, UnsafeStore, "SET LOGGED for eo_records"),
    ],
)
def test_a_server_that_may_lose_records_is_refused(changes: Any, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said):
        run_sync(client_with(**changes).check(DENIED))
    client = client_with(allow_unsafe=True, **changes)
    if kind is UnsafeStore:
        run_sync(client.check(DENIED))
    else:
        with pytest.raises(kind):
            run_sync(client.check(DENIED))


# -- after an error


@pytest.mark.parametrize("error", [Contention("x"), InvalidKey("x"), ConfigurationError("x")])
def test_a_connection_whose_server_has_refused_a_statement_is_kept(error: Exception) -> None:
    client = client_with()
    client.error = error
    with pytest.raises(type(error)):
        client.work()
    assert (client.source.returned, client.source.dropped) == (1, 0)


def test_an_open_transaction_is_rolled_back_first() -> None:
    client = client_with()
    client.work()
    client.error = Contention("deadlock")
    client.source.connection.pgconn.transaction_status = pq.TransactionStatus.INERROR
    with pytest.raises(Contention):
        client.work()
    assert client.source.connection.queries == [b"ROLLBACK"]
    assert client.source.dropped == 0


@pytest.mark.parametrize(
    ("status", "transaction"),
    [
        (pq.ConnStatus.BAD, pq.TransactionStatus.IDLE),
        (pq.ConnStatus.OK, pq.TransactionStatus.ACTIVE),
        (pq.ConnStatus.OK, pq.TransactionStatus.UNKNOWN),
    ],
)
def test_a_connection_in_any_other_state_is_dropped(status: Any, transaction: Any) -> None:
    client = client_with()
    client.work()
    client.error = Contention("x")
    client.source.connection.pgconn.status = status
    client.source.connection.pgconn.transaction_status = transaction
    with pytest.raises(Contention):
        client.work()
    assert client.source.dropped == 1


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (TimeoutError(), StoreUnavailable, "timeout 5 s, connect_timeout 3 s"),
        (psycopg.OperationalError("server closed\nmore"), ConnectionLost, "server closed"),
        (asyncio.CancelledError(), asyncio.CancelledError, "^$"),
        (StoreUnavailable("x"), StoreUnavailable, "x"),
    ],
)
def test_after_any_other_error_the_connection_is_dropped(
    error: BaseException, kind: type[BaseException], said: str
) -> None:
    client = client_with()
    client.error = error
    with pytest.raises(kind, match=said):
        client.work()
    assert (client.source.returned, client.source.dropped) == (0, 1)


def test_a_statement_is_prepared_under_a_name_that_is_its_own() -> None:
    assert Statement("a").name == Statement("a").name != Statement("b").name
    assert len(Statement("a" * 1000).name) < 64  # the server's limit
