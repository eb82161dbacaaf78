"""A client of PostgreSQL: it sends one statement, and returns its rows.

It uses libpq directly, without cursors, adaptation or BEGIN: every statement is its own transaction and one round trip.
`PostgresClient` is written once, for sync and async callers: all that blocks is in the `Waiter` of its source.

Where the process id in the server's greeting is not that of the process that answers, the connection runs through a
pooler (PgBouncer). Nothing that belongs to a session is used then: no prepared statements, no SET, no LISTEN.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec import Struct

from effectonce.backends.common.sql_store import require_schema_version
from effectonce.contracts import ConnectionLost, Contention
from effectonce.errors import ConfigurationError, InvalidKey, StoreUnavailable, UnsafeStore

from .connection import ConnectionSource, PostgresConnection
from .conninfo import PrepareMode, first_line
from .driver import pq, psycopg
from .errors import NotPrepared, replica_error, translate

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

Row = tuple[Any, ...]
NamedRow = dict[str, Any]  # by the names of the columns
Param = bytes | None  # in PostgreSQL's binary format
Params = Sequence[Param]
T = TypeVar("T")

SCHEMA_VERSION: Final = 1
OLDEST_SERVER: Final = 13_00_00
LISTEN_AGAIN_S: Final = 15.0  # after this much silence a listener asks whether the server is still there
_BINARY_FORMAT: Final = pq.Format.BINARY
_BEGIN_STATEMENT: Final = b"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"


class Statement:
    """One statement, and the name under which it is prepared.

    The name is a hash of the text. Behind a pooler, several clients share a server connection: so a statement of the
    same name there is the same statement.

    ``generic``: once prepared, it is planned only once. Otherwise the server plans it again for each small batch, since
    it estimates that to be cheaper, and planning is half of its work.
    """

    __slots__ = ("generic", "name", "sql")

    def __init__(self, sql: str, *, generic: bool = False) -> None:
        self.generic = generic
        self.sql = sql.encode()
        self.name = b"effectonce_" + hashlib.sha256(self.sql).hexdigest()[:24].encode()


class ClientSettings(Struct, frozen=True):
    """The settings of a store's clients."""

    address: str  # without its password, for messages
    timeout: float  # of one statement, in seconds
    prepare: PrepareMode
    allow_unsafe: bool  # accept a server that may lose what it has confirmed


class PostgresClient:
    """Runs statements for one caller, one at a time, each on a connection of its source.

    After an error the connection is dropped, unless the server has cleanly refused the statement and is idle.
    """

    def __init__(self, source: ConnectionSource, settings: ClientSettings, statements: Mapping[str, Statement]) -> None:
        self._source = source
        self._settings = settings
        self._statements = statements  # those on records; `facts`, `version`, `durability` and others are among them
        self._address = settings.address

    async def execute(
        self, statement: Statement, params: Params = (), *, prepare: bool = True, schema: bool = True
    ) -> list[Row]:
        """Run ``statement`` as a transaction of its own, in READ COMMITTED, and return its rows. ``prepare=False``:
        plan it for these parameters. ``schema=False``: it needs none of the store's tables."""

        async def work(connection: PostgresConnection, deadline: float) -> list[Row]:
            return _rows(connection, await self._run_alone(connection, statement, params, deadline, prepare))

        return await self._with_connection(work, schema=schema)

    async def query(self, statement: Statement, params: Params = (), *, schema: bool = True) -> list[NamedRow]:
        """Do what `execute` does, planned for these parameters; the rows have the names of their columns. It is for
        statements that are not sent for every message. ``schema=False``: it needs none of our tables."""

        async def work(connection: PostgresConnection, deadline: float) -> list[NamedRow]:
            return _named_rows(connection, await self._run_alone(connection, statement, params, deadline, False))

        return await self._with_connection(work, schema=schema)

    async def execute_script(self, sql: str, timeout: float) -> None:
        """Run several statements, sent in one message, as one transaction."""

        async def work(connection: PostgresConnection, deadline: float) -> None:
            await self._send(connection, lambda: connection.pgconn.send_query(sql.encode()), deadline)
            connection.schema_verified = False

        await self._with_connection(work, timeout=timeout, schema=False)

    async def check(self, denied: Statement) -> None:
        """Verify the server and the tables again. Verify also that this user may write (the statement ``denied``
        returns the privileges that are lacking), and that commits cannot be lost."""

        async def work(connection: PostgresConnection, deadline: float) -> NamedRow:
            privileges = await self._fetch_one(connection, denied, deadline)
            return privileges | await self._fetch_one(connection, self._statements["durability"], deadline)

        server = await self._with_connection(work, schema=True, verify_again=True)
        if server["lacking"]:
            raise ConfigurationError(
                f"the user of {self._address} lacks {server['lacking']}; "
                "GRANT SELECT, INSERT, UPDATE, DELETE on these tables to it"
            )
        if server["read_only"]:
            raise ConfigurationError(
                f"{self._address} is read-only for this user (perhaps its disk is full); ALTER ROLE or DATABASE ... "
                "SET default_transaction_read_only = off"
            )
        if self._settings.allow_unsafe:
            return
        if server["unsynced"]:
            raise UnsafeStore(
                f"{self._address} runs with fsync=off: a power cut loses or corrupts records; set fsync=on "
                "(or allow_unsafe=true, where the data may be lost)"
            )
        if server["answers_early"]:
            raise UnsafeStore(
                f"{self._address} answers before a commit is on disk: a crash loses records; "
                "ALTER ROLE ... SET synchronous_commit = on, for the role that effectonce connects as"
            )
        if server["unlogged"]:
            raise UnsafeStore(
                f"{self._address} empties its UNLOGGED tables after a crash: "
                f"ALTER TABLE ... SET LOGGED for {server['unlogged']}"
            )

    async def notifications(self, channel: bytes, timeout: float) -> list[bytes]:
        """Return the payloads that have arrived on ``channel``, waiting up to ``timeout`` seconds for one. [] where the
        connection cannot listen."""
        payloads: list[bytes] = []

        async def listen(connection: PostgresConnection, deadline: float) -> bool:
            if connection.behind_pooler or not self._source.exclusive:
                return False
            pgconn = connection.pgconn
            if connection.listening_to != channel or time.monotonic() - connection.listened_at > LISTEN_AGAIN_S:
                # Repeat LISTEN now and then: its answer shows that the server is still there.
                await self._send(connection, lambda: pgconn.send_query(b'LISTEN "' + channel + b'"'), deadline)
                connection.listening_to, connection.listened_at = channel, time.monotonic()
            until = time.monotonic() + timeout
            while not payloads:
                pgconn.consume_input()
                while (notice := pgconn.notifies()) is not None:
                    payloads.append(bytes(notice.extra))
                if not payloads:
                    try:
                        await self._source.waiter.wait_until_ready(pgconn.socket, False, until)
                    except TimeoutError:
                        break
            return True

        if not await self._with_connection(listen, schema=False):
            await self._source.waiter.sleep(timeout)
        return payloads

    async def close(self) -> None:
        await self._source.close()

    # -- one connection

    async def _with_connection(
        self,
        work: Callable[[PostgresConnection, float], Awaitable[T]],
        *,
        schema: bool,
        timeout: float | None = None,
        verify_again: bool = False,
    ) -> T:
        """Call ``work`` with a connection and a deadline, and return its result.

        The connection is open then, its server verified, and with ``schema`` also the tables. The time for ``work``
        starts only after that, since the verification has a time of its own. Otherwise a slow network would end every
        first operation, and the connection with it. ``verify_again``: verify what was verified before, too.
        """
        connection = await self._source.take()
        try:
            if verify_again:
                connection.verified = connection.schema_verified = False
            if not connection.verified or (schema and not connection.schema_verified):
                deadline = time.monotonic() + self._source.connect_timeout
                if not connection.verified:
                    await self._verify_server(connection, deadline)
                if schema:
                    await self._verify_schema(connection, deadline)
            result = await work(connection, time.monotonic() + (timeout or self._settings.timeout))
        except BaseException as error:
            await self._keep_or_drop(connection, error)
            if isinstance(error, TimeoutError):
                raise StoreUnavailable(
                    f"{self._address} did not answer in time (timeout {self._settings.timeout:g} s, "
                    f"connect_timeout {self._source.connect_timeout:g} s)"
                ) from error
            if isinstance(error, psycopg.Error):
                raise ConnectionLost(f"the connection to {self._address} broke: {first_line(error)}") from error
            raise
        await self._source.give_back(connection)
        return result

    async def _keep_or_drop(self, connection: PostgresConnection, error: BaseException) -> None:
        """Keep the connection only where the server has cleanly refused a statement, and is idle."""
        pgconn = connection.pgconn
        refused = isinstance(error, Contention | InvalidKey | ConfigurationError)
        if refused and pgconn.status == pq.ConnStatus.OK and connection.verified:
            try:
                if pgconn.transaction_status == pq.TransactionStatus.INERROR:
                    await self._send(connection, lambda: pgconn.send_query(b"ROLLBACK"), time.monotonic() + 1.0)
                if pgconn.transaction_status == pq.TransactionStatus.IDLE:
                    await self._source.give_back(connection)
                    return
            except Exception:  # then it is dropped
                pass
        await self._source.drop(connection)

    async def _verify_server(self, connection: PostgresConnection, deadline: float) -> None:
        """Refuse a server that cannot keep records, and set up the session."""
        server = await self._fetch_one(connection, self._statements["facts"], deadline)
        if server["version"] < OLDEST_SERVER:
            raise UnsafeStore(
                f"{self._address} is PostgreSQL {server['version'] // 10000}; effectonce needs 13 or later"
            )
        if server["replica"]:
            raise replica_error(self._address)
        if server["encoding"] not in ("UTF8", "SQL_ASCII"):
            raise UnsafeStore(
                f"the database of {self._address} is encoded in {server['encoding']}, which cannot hold every key; "
                "create one with ENCODING 'UTF8'"
            )
        if connection.pgconn.parameter_status(b"client_encoding") != b"UTF8":
            raise ConfigurationError("effectonce needs client_encoding UTF8; open the pool with client_encoding=UTF8")
        connection.behind_pooler = server["pid"] != connection.pgconn.backend_pid
        connection.read_committed = server["isolation"] == "read committed"
        prepare = self._settings.prepare
        connection.may_prepare = prepare == "on" or (prepare == "auto" and not connection.behind_pooler)
        if self._source.exclusive and not connection.behind_pooler:
            # The server gives up on a lock before it gives up on the statement, and on that before its caller does.
            timeout = self._settings.timeout
            limits = [b"%d" % (timeout * 1000), b"%d" % max(1, timeout * 200)]
            await self._run(connection, self._statements["session_settings"], limits, deadline, False)
            connection.read_committed = True
        connection.verified = True

    async def _verify_schema(self, connection: PostgresConnection, deadline: float) -> None:
        row = await self._fetch_one(connection, self._statements["version"], deadline)
        require_schema_version(self._address, row["stored"], row["oldest"], SCHEMA_VERSION)
        connection.schema_verified = True

    async def _fetch_one(self, connection: PostgresConnection, statement: Statement, deadline: float) -> NamedRow:
        (row,) = _named_rows(connection, await self._run(connection, statement, (), deadline, False))
        return row

    async def _run_alone(
        self, connection: PostgresConnection, statement: Statement, params: Params, deadline: float, prepare: bool
    ) -> PGresult:
        """Do what `_run` does, in a transaction of its own at READ COMMITTED."""
        if connection.read_committed:
            return await self._run(connection, statement, params, deadline, prepare)
        await self._send(connection, lambda: connection.pgconn.send_query(_BEGIN_STATEMENT), deadline)
        result = await self._run(connection, statement, params, deadline, prepare)
        await self._send(connection, lambda: connection.pgconn.send_query(b"COMMIT"), deadline)
        return result

    async def _run(
        self, connection: PostgresConnection, statement: Statement, params: Params, deadline: float, prepare: bool
    ) -> PGresult:
        """Run ``statement``; with ``prepare`` as a prepared one, where the connection may do that."""
        pgconn = connection.pgconn
        formats = [_BINARY_FORMAT] * len(params)
        prepare = prepare and connection.may_prepare
        generic = prepare and statement.generic and self._source.exclusive
        if connection.forces_generic_plans != generic:
            mode = b"SET plan_cache_mode = force_generic_plan" if generic else b"RESET plan_cache_mode"
            deadline += await self._send_setup(connection, lambda: pgconn.send_query(mode))
            connection.forces_generic_plans = generic
        if prepare:
            name = statement.name
            try:
                if name not in connection.prepared_names:
                    deadline += await self._send_setup(connection, lambda: pgconn.send_prepare(name, statement.sql))
                    connection.prepared_names.add(name)
                result = await self._send(
                    connection, lambda: pgconn.send_query_prepared(name, params, formats, _BINARY_FORMAT), deadline
                )
            except NotPrepared:
                # Something between us and the server shares or resets sessions after all. The statement did not run.
                connection.may_prepare = False
                if pgconn.transaction_status == pq.TransactionStatus.INERROR:
                    raise ConnectionLost(f"{self._address} has lost a prepared statement") from None
            else:
                return result
        return await self._send(
            connection, lambda: pgconn.send_query_params(statement.sql, params, None, formats, _BINARY_FORMAT), deadline
        )

    async def _send_setup(self, connection: PostgresConnection, send: Callable[[], None]) -> float:
        """Send what a statement needs before it runs for the first time. Returns the seconds that this took: as in
        `_with_connection`, they do not count against the statement's own time."""
        started_at = time.monotonic()
        await self._send(connection, send, started_at + self._source.connect_timeout)
        return time.monotonic() - started_at

    async def _send(self, connection: PostgresConnection, send: Callable[[], None], deadline: float) -> PGresult:
        """Call ``send``, which hands one message to libpq, and wait for its results. Returns the last one; the first
        error among them is raised."""
        pgconn, wait_until_ready = connection.pgconn, self._source.waiter.wait_until_ready
        send()
        while pgconn.flush():
            await wait_until_ready(pgconn.socket, True, deadline)
            pgconn.consume_input()
        last: PGresult | None = None
        failed: PGresult | None = None
        while True:
            while pgconn.is_busy():
                await wait_until_ready(pgconn.socket, False, deadline)
                pgconn.consume_input()
            result = pgconn.get_result()
            if result is None:
                break
            last = result
            if failed is None and result.status == pq.ExecStatus.FATAL_ERROR:
                failed = result
        if failed is not None:
            raise translate(failed, self._address)
        if last is None:
            raise ConnectionLost(f"{self._address} ended the connection without an answer")
        return last


def _rows(connection: PostgresConnection, result: PGresult) -> list[Row]:
    loader = connection.loader
    loader.set_pgresult(result, set_loaders=True, format=_BINARY_FORMAT)
    rows: list[Row] = loader.load_rows(0, result.ntuples, tuple)
    loader.set_pgresult(None)
    return rows


def _named_rows(connection: PostgresConnection, result: PGresult) -> list[NamedRow]:
    names = [(result.fname(n) or b"").decode() for n in range(result.nfields)]
    return [dict(zip(names, row, strict=True)) for row in _rows(connection, result)]
