"""PostgreSQL on the wire: one statement out, its rows back, its errors in our words.

Straight through libpq, without cursors, adaptation or BEGIN: every statement is its own transaction and one
round trip. `Wire` is written once; what blocks is in its `Source`, sync or async.

Poolers. A connection whose server has another process id than the one it was greeted with runs through a pooler
(PgBouncer). Nothing that belongs to a session is used there: no prepared statements, no SET, no LISTEN.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from effectonce.contracts import ConnectionLost, Contention, remedy
from effectonce.errors import (
    ConfigurationError,
    InvalidKey,
    KeyTooLong,
    SchemaMismatch,
    SchemaMissing,
    StoreUnavailable,
    UnsafeStore,
    show,
)

from .session import Prepare, Session, Source, first_line, pq, psycopg

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

Row = tuple[Any, ...]
Param = bytes | None

_BINARY = pq.Format.BINARY
_OLDEST = 130000
_SILENCE = 15.0  # seconds after which a listener asks whether the server is still there


class Statement:
    """One statement. Its name tells its text: behind a pooler, another client's statement of the same name
    on a shared server connection is then the same statement.

    ``generic``: prepared, it is planned once. Else the server plans it anew for each small batch, since it takes that
    for cheaper, and that is half of its work."""

    __slots__ = ("generic", "name", "sql")

    def __init__(self, sql: str, *, generic: bool = False) -> None:
        self.generic = generic
        self.sql = sql.encode()
        self.name = b"effectonce_" + hashlib.sha256(self.sql).hexdigest()[:24].encode()


class Wire:
    """One caller's way to the server. After any error but a clean refusal the connection is dropped."""

    def __init__(
        self,
        source: Source,
        *,
        shown: str,
        timeout: float,
        prepare: Prepare,
        schema: int,
        allow_unsafe: bool,
        facts: Statement,
        session: Statement,
        version: Statement,
        durability: Statement,
    ) -> None:
        self._source = source
        self._shown = shown
        self._timeout = timeout
        self._prepare = prepare
        self._schema = schema
        self._allow_unsafe = allow_unsafe
        self._facts, self._session, self._version, self._durability = facts, session, version, durability

    async def execute(
        self, statement: Statement, params: Sequence[Param] = (), *, prepare: bool = True, schema: bool = True
    ) -> list[Row]:
        """The rows of ``statement``, run by itself in READ COMMITTED.

        ``prepare=False``: plan it for these parameters. ``schema=False``: it needs none of our tables.
        """

        async def work(session: Session, deadline: float) -> list[Row]:
            if session.pinned:
                return await self._run(session, statement, params, deadline, prepare)
            await self._send(session, lambda: session.pgconn.send_query(_BEGIN), deadline)
            rows = await self._run(session, statement, params, deadline, prepare)
            await self._send(session, lambda: session.pgconn.send_query(b"COMMIT"), deadline)
            return rows

        return await self._with_session(work, self._timeout, schema=schema)

    async def script(self, sql: str, timeout: float) -> None:
        """Several statements in one message; they are one transaction."""

        async def work(session: Session, deadline: float) -> list[Row]:
            await self._send(session, lambda: session.pgconn.send_query(sql.encode()), deadline)
            session.current = False
            return []

        await self._with_session(work, timeout, schema=False)

    async def check(self, denied: Statement) -> None:
        """Whether the server can keep the promise: what is otherwise looked at once per connection, whether this user
        may write (``denied`` gives what it may not), and whether commits can be lost."""

        async def work(session: Session, deadline: float) -> list[Row]:
            lacking = await self._run(session, denied, (), deadline, False)
            return [*lacking, *await self._run(session, self._durability, (), deadline, False)]

        (lacking,), (unwritable, unsynced, early, unlogged) = await self._with_session(
            work, self._timeout, schema=True, anew=True
        )
        if lacking:
            raise ConfigurationError(
                f"the user of {self._shown} lacks {lacking}; GRANT SELECT, INSERT, UPDATE, DELETE on these tables to it"
            )
        if unwritable:
            raise ConfigurationError(
                f"{self._shown} lets this user only read (a full disk, perhaps); ALTER ROLE or DATABASE ... "
                "SET default_transaction_read_only = off"
            )
        if self._allow_unsafe:
            return
        if unsynced:
            raise UnsafeStore(
                f"{self._shown} runs with fsync=off: a power cut loses or corrupts records; set fsync=on "
                "(allow_unsafe=true where something else keeps the data, or it may be lost)"
            )
        if early:
            raise UnsafeStore(
                f"{self._shown} answers before a commit is on disk: a crash loses records; "
                "ALTER ROLE ... SET synchronous_commit = on, for the role that effectonce connects as"
            )
        if unlogged:
            raise UnsafeStore(
                f"{self._shown} empties its UNLOGGED tables after a crash: ALTER TABLE ... SET LOGGED for {unlogged}"
            )

    async def notifications(self, channel: bytes, timeout: float) -> list[bytes]:
        """The payloads that came in on ``channel``, after at most ``timeout`` seconds. [] where it cannot listen."""
        found: list[bytes] = []

        async def work(session: Session, deadline: float) -> list[Row]:
            if session.shared or not self._source.owns:
                return []
            pgconn = session.pgconn
            if session.listening != channel or time.monotonic() - session.heard > _SILENCE:
                # Again now and then: a peer that went away without a word is silent, too.
                await self._send(session, lambda: pgconn.send_query(b'LISTEN "' + channel + b'"'), deadline)
                session.listening, session.heard = channel, time.monotonic()
            until = time.monotonic() + timeout
            while not found:
                pgconn.consume_input()
                while (notice := pgconn.notifies()) is not None:
                    found.append(bytes(notice.extra))
                if not found:
                    try:
                        await self._source.ready(pgconn.socket, False, until)
                    except TimeoutError:
                        break
            return [()]

        if not await self._with_session(work, self._timeout, schema=False):
            await self._source.sleep(timeout)
        return found

    async def close(self) -> None:
        await self._source.close()

    # -- one session

    async def _with_session(
        self,
        work: Callable[[Session, float], Awaitable[list[Row]]],
        timeout: float,
        *,
        schema: bool,
        anew: bool = False,
    ) -> list[Row]:
        """``work`` with a session and its deadline. Its time starts when the session is there, greeted and (with
        ``schema``) of the right version: that has a time of its own, for else a slow way to the server would end
        every first operation, and with it the connection. ``anew``: whatever is known of the session already."""
        session = await self._source.take()
        try:
            if anew:
                session.greeted = session.current = False
            if not session.greeted or (schema and not session.current):
                deadline = time.monotonic() + self._source.connect_timeout
                if not session.greeted:
                    await self._greet(session, deadline)
                if schema:
                    await self._check_version(session, deadline)
            rows = await work(session, time.monotonic() + timeout)
        except BaseException as error:
            await self._after(session, error)
            if isinstance(error, TimeoutError):
                raise StoreUnavailable(
                    f"{self._shown} did not answer in time (timeout {self._timeout:g} s, "
                    f"connect_timeout {self._source.connect_timeout:g} s)"
                ) from error
            if isinstance(error, psycopg.Error):
                raise ConnectionLost(f"the connection to {self._shown} broke: {first_line(error)}") from error
            raise
        await self._source.give_back(session)
        return rows

    async def _after(self, session: Session, error: BaseException) -> None:
        """Keep the connection only where the server has cleanly refused a statement, and is idle."""
        pgconn = session.pgconn
        refused = isinstance(error, Contention | InvalidKey | ConfigurationError)
        if refused and pgconn.status == pq.ConnStatus.OK and session.greeted:
            try:
                if pgconn.transaction_status == pq.TransactionStatus.INERROR:
                    await self._send(session, lambda: pgconn.send_query(b"ROLLBACK"), time.monotonic() + 1.0)
                if pgconn.transaction_status == pq.TransactionStatus.IDLE:
                    await self._source.give_back(session)
                    return
            except Exception:  # then it is dropped
                pass
        await self._source.drop(session)

    async def _greet(self, session: Session, deadline: float) -> None:
        rows = await self._run(session, self._facts, (), deadline, False)
        ((pid, replica, isolation, encoding, version),) = rows
        if version < _OLDEST:
            raise UnsafeStore(f"{self._shown} is PostgreSQL {version // 10000}; effectonce needs 13 or later")
        if replica:
            raise StoreUnavailable(_REPLICA.format(self._shown))
        if encoding not in ("UTF8", "SQL_ASCII"):
            raise UnsafeStore(
                f"the database of {self._shown} is encoded in {encoding}, which cannot hold every key; "
                "create one with ENCODING 'UTF8'"
            )
        if session.pgconn.parameter_status(b"client_encoding") != b"UTF8":
            raise ConfigurationError("effectonce needs connections with client_encoding UTF8; open the pool with it")
        session.shared = pid != session.pgconn.backend_pid
        session.pinned = isolation == "read committed"
        session.prepares = self._prepare == "on" or (self._prepare == "auto" and not session.shared)
        if self._source.owns and not session.shared:
            # Locks are given up before the statement is, and the statement before its caller gives up.
            limits = [b"%d" % (self._timeout * 1000), b"%d" % max(1, self._timeout * 200)]
            await self._run(session, self._session, limits, deadline, False)
            session.pinned = True
        session.greeted = True

    async def _check_version(self, session: Session, deadline: float) -> None:
        ((found, oldest),) = await self._run(session, self._version, (), deadline, False)
        todo = remedy(found, oldest, self._schema)
        if todo:
            raise SchemaMismatch(
                f"the tables in {self._shown} are of schema version {found}, this release reads {self._schema}; "
                + (f"run `effectonce migrate {self._shown}`" if todo == "migrate" else "upgrade effectonce")
            )
        session.current = True

    async def _run(
        self, session: Session, statement: Statement, params: Sequence[Param], deadline: float, prepare: bool
    ) -> list[Row]:
        pgconn = session.pgconn
        formats = [_BINARY] * len(params)
        prepare = prepare and session.prepares
        generic = prepare and statement.generic and self._source.owns
        if session.generic != generic:
            mode = b"SET plan_cache_mode = force_generic_plan" if generic else b"RESET plan_cache_mode"
            deadline += await self._first(session, lambda: pgconn.send_query(mode))
            session.generic = generic
        if prepare:
            name = statement.name
            try:
                if name not in session.prepared:
                    deadline += await self._first(session, lambda: pgconn.send_prepare(name, statement.sql))
                    session.prepared.add(name)
                result = await self._send(
                    session, lambda: pgconn.send_query_prepared(name, params, formats, _BINARY), deadline
                )
            except _NotPrepared:
                # Something between us and the server shares or resets sessions after all. Nothing was run.
                session.prepares = False
                if pgconn.transaction_status == pq.TransactionStatus.INERROR:
                    raise ConnectionLost(f"{self._shown} has lost a prepared statement") from None
            else:
                return _rows(session, result)
        result = await self._send(
            session, lambda: pgconn.send_query_params(statement.sql, params, None, formats, _BINARY), deadline
        )
        return _rows(session, result)

    async def _first(self, session: Session, send: Callable[[], None]) -> float:
        """Send what a statement needs before its first time; gives the seconds. As in `_with_session`, they are not of
        the statement's own time."""
        began = time.monotonic()
        await self._send(session, send, began + self._source.connect_timeout)
        return time.monotonic() - began

    async def _send(self, session: Session, send: Callable[[], None], deadline: float) -> PGresult:
        """The last result of what ``send`` puts on the wire; the first error among them is raised."""
        pgconn, ready = session.pgconn, self._source.ready
        send()
        while pgconn.flush():
            await ready(pgconn.socket, True, deadline)
            pgconn.consume_input()
        last: PGresult | None = None
        failed: PGresult | None = None
        while True:
            while pgconn.is_busy():
                await ready(pgconn.socket, False, deadline)
                pgconn.consume_input()
            result = pgconn.get_result()
            if result is None:
                break
            last = result
            if failed is None and result.status == pq.ExecStatus.FATAL_ERROR:
                failed = result
        if failed is not None:
            raise self._translated(failed)
        if last is None:
            raise ConnectionLost(f"{self._shown} ended the connection without an answer")
        return last

    # -- errors

    def _translated(self, result: PGresult) -> Exception:
        state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
        said = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or result.error_message
        worded = show(said.decode("utf-8", "replace").strip(), 200)
        if state == "54000" and _about_an_index(result):
            error: Exception = KeyTooLong(
                f"the scope and the key are too long together for an index of PostgreSQL: {worded}"
            )
        else:
            error = self._worded(state, worded)
        error.__cause__ = psycopg.errors.error_from_result(result)
        return error

    def _worded(self, state: str, said: str) -> Exception:
        where = self._shown
        if state in ("40001", "40P01", "55P03"):
            return Contention(said)
        if state in ("26000", "42P05"):
            return _NotPrepared(said)
        if state in ("42P01", "3F000"):
            return SchemaMissing(f"the tables are missing in {where} ({said}); run `effectonce migrate {where}`")
        if state == "42703":
            return SchemaMismatch(f"the tables in {where} are outdated ({said}); run `effectonce migrate {where}`")
        if state == "25006":
            return StoreUnavailable(_REPLICA.format(where))
        if state == "42501":
            return ConfigurationError(f"{where}: {said}; grant SELECT, INSERT, UPDATE and DELETE on the tables")
        if state in ("22021", "22P05"):
            return InvalidKey(f"PostgreSQL cannot keep this scope or key: {said}")
        if state[:2] in ("", "08") or state in ("57P01", "57P02", "57P03", "57P05", "0A000"):
            # 0A000: a prepared statement's tables were migrated under it; a new connection prepares anew.
            return ConnectionLost(f"the connection to {where} broke: {said}")
        if state == "57014":
            return StoreUnavailable(f"{where} did not finish within {self._timeout:g} s: {said}")
        return StoreUnavailable(f"{where} refused: {said} (SQLSTATE {state})")


_BEGIN = b"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"

_REPLICA = (
    "{} answers as a read-only replica, and claims need the primary; name the primary, "
    "or all hosts with ?target_session_attrs=read-write"
)


def _about_an_index(result: PGresult) -> bool:
    """Whether the limit that was exceeded (54000) is an index entry's. A full queue of notifications and a server
    out of transaction ids report the same SQLSTATE."""
    file = result.error_field(pq.DiagnosticField.SOURCE_FILE) or b""
    return bool(result.error_field(pq.DiagnosticField.TABLE_NAME)) or file.endswith(b"indextuple.c")


class _NotPrepared(Exception):
    """The server does not know, or already knows, a prepared statement's name."""


def _rows(session: Session, result: PGresult) -> list[Row]:
    reader = session.rows
    reader.set_pgresult(result, set_loaders=True, format=_BINARY)
    rows: list[Row] = reader.load_rows(0, result.ntuples, tuple)
    reader.set_pgresult(None)
    return rows
