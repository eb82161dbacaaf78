"""SQLite through the standard library: open a file, wait for its write lock, translate its errors.

SQLite blocks, so the async port is a thread: `ThreadedPort` runs the sync port's methods on a thread of its own.
"""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, TypeVarTuple
from urllib.parse import quote

from effectonce.backends.common.sql_files import table_prefix
from effectonce.contracts import ConnectionLost, Contention, Port
from effectonce.errors import (
    ConfigurationError,
    CorruptRecord,
    EffectOnceError,
    InvalidOption,
    SchemaMissing,
    StoreUnavailable,
    show,
)
from effectonce.record import Batchable, Page, Query, Record, Reply, Resolution, Stats, Swept
from effectonce.values.urls import Address

P = ParamSpec("P")
T = TypeVar("T")
Args = TypeVarTuple("Args")

OLDEST_SQLITE = (3, 35, 0)  # RETURNING
SYNCHRONOUS_LEVELS = ("FULL", "NORMAL", "EXTRA")
_PRIMARY_CODE_MASK = 0xFF  # an extended error code has the primary one in its lowest byte
_FIRST_LOCK_PAUSE_S = 0.0002
_MAX_LOCK_PAUSE_S = 0.005


class SQLiteConnection:
    """One connection to one file, for one caller at a time, on any thread.

    It opens when first used and again after an error. A step is repeated while another connection holds the write
    lock, and reads the clock again each time: SQLite's own busy timeout would wait *inside* a statement, with the time
    already bound, and a lease could be over before it was written.
    """

    def __init__(self, file: SQLiteFile, prepare: Callable[[sqlite3.Cursor], None]) -> None:
        self._file = file
        self._prepare = prepare
        # The cursor of the open connection is in one of these: outside of a transaction, or inside of one.
        self.cursor: sqlite3.Cursor | None = None
        self._cursor_in_transaction: sqlite3.Cursor | None = None

    def step(self, work: Callable[[sqlite3.Cursor, *Args], T], *args: *Args) -> T:
        """Call ``work(cursor, …)``; each of its statements is a transaction of its own."""
        try:
            return work(self.cursor or self.open(), *args)
        except (sqlite3.Error, Contention) as error:
            return self._retry(error, work, *args)

    def transaction(self, work: Callable[[sqlite3.Cursor, *Args], T], *args: *Args) -> T:
        """Call ``work(cursor, …)`` in one transaction, with the write lock held from the start."""

        def within(cursor: sqlite3.Cursor) -> T:
            # An interruption may leave the connection inside of the transaction, even during the rollback. Used again,
            # it would answer from what it never commits. So it is hidden from `step`, and the next `open` closes it.
            self.cursor, self._cursor_in_transaction = None, cursor
            try:
                cursor.execute("BEGIN IMMEDIATE")
                answer = work(cursor, *args)
                cursor.execute("COMMIT")
            except BaseException:
                self._undo(cursor)
                raise
            self.cursor, self._cursor_in_transaction = cursor, None
            return answer

        return self.step(within)

    def _undo(self, cursor: sqlite3.Cursor) -> None:
        """Roll back, or close the connection where that fails, which has the same effect."""
        try:
            if cursor.connection.in_transaction:
                cursor.execute("ROLLBACK")
            self.cursor, self._cursor_in_transaction = cursor, None
        except sqlite3.Error:
            self.close()

    def _retry(
        self,
        error: sqlite3.Error | Contention,
        work: Callable[[sqlite3.Cursor, *Args], T],
        *args: *Args,
    ) -> T:
        """Repeat ``work`` while another connection holds the lock, up to the timeout; raise other errors translated."""
        deadline = time.monotonic() + self._file.timeout
        pause = _FIRST_LOCK_PAUSE_S
        while True:
            if not isinstance(error, Contention) and not _is_busy(error):
                self.close()
                raise self._file.translate(error) from error
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise StoreUnavailable(
                    f"{self._file} was locked by another connection for {self._file.timeout:g} s; end the transaction "
                    "that holds it, or raise the option timeout"
                ) from error
            # Random, so that processes that wait for one lock do not retry in step.
            time.sleep(min(remaining, random.uniform(0, pause)))
            pause = min(pause * 2, _MAX_LOCK_PAUSE_S)
            try:
                return work(self.cursor or self.open(), *args)
            except (sqlite3.Error, Contention) as next_error:
                error = next_error

    def open(self) -> sqlite3.Cursor:
        """Open a new connection in place of the old one, and prepare it. Returns its cursor."""
        self.close()
        opened = self._file.open()
        try:
            cursor = opened.cursor()
            self._prepare(cursor)
        except BaseException:
            opened.close()
            raise
        self.cursor = cursor
        return cursor

    def close(self) -> None:
        """Close it; the next step opens another."""
        cursor, self.cursor, self._cursor_in_transaction = self.cursor or self._cursor_in_transaction, None, None
        if cursor is not None:
            try:
                cursor.connection.close()
            except sqlite3.Error:  # it holds nothing any more
                pass


def run_script(cursor: sqlite3.Cursor, script: str) -> None:
    """Run several statements in one transaction, under the write lock: two processes may do so at once. After a failure
    the caller closes the connection, which rolls back."""
    cursor.execute("BEGIN IMMEDIATE")
    run_statements(cursor, script)
    cursor.execute("COMMIT")


def run_statements(cursor: sqlite3.Cursor, script: str) -> None:
    """Run several statements in the caller's transaction."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            cursor.execute(statement)
            statement = ""


class SQLiteFile:
    """A database file and how to open it, from ``sqlite:///relative.db`` or ``sqlite:////absolute/path.db``."""

    def __init__(self, address: Address) -> None:
        path = address.path[1:]
        if address.netloc:
            raise InvalidOption(
                f"{address} names a host; write sqlite:///{address.netloc} for a relative path, sqlite:////… for an "
                "absolute one"
            )
        if path in ("", ":memory:"):
            raise InvalidOption(f"{address} names no file; write sqlite:///file.db, or memory:// for a store in memory")
        if "\0" in path:
            raise InvalidOption("a path cannot contain a zero byte")
        # Made absolute here: a later change of directory must not change the store.
        self.path = os.path.abspath(path)
        self.synchronous = address.take("synchronous", _synchronous, "FULL")
        self.timeout = address.seconds("timeout", 5.0)
        self._shown = str(address)
        if sqlite3.sqlite_version_info < OLDEST_SQLITE:
            raise ConfigurationError(
                f"this Python is built with SQLite {sqlite3.sqlite_version}; effectonce needs "
                f"{'.'.join(map(str, OLDEST_SQLITE))} or newer: use a newer Python build"
            )

    def open(self) -> sqlite3.Connection:
        """A new connection in WAL mode and autocommit, without a busy timeout."""
        opened = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            (mode,) = opened.execute("PRAGMA journal_mode").fetchone()
            if mode != "wal":
                (mode,) = opened.execute("PRAGMA journal_mode = WAL").fetchone()
            if mode != "wal":
                raise ConfigurationError(
                    f"{self} cannot use a write-ahead log (its journal mode stays {mode!r}); put it on a local disk"
                )
            opened.execute(f"PRAGMA synchronous = {self.synchronous}")
            # Pages between checkpoints (16 MB of log): four times SQLite's own, since random keys make each
            # checkpoint write many pages. Measured at synchronous=NORMAL: 5 to 12 % less CPU per claim + completion.
            opened.execute("PRAGMA wal_autocheckpoint = 4000")
        except BaseException:
            opened.close()
            raise
        return opened

    def lacks(self, table: str) -> bool:
        """Whether the table or the whole file is missing. Unlike `open`, this creates nothing."""
        if not os.path.exists(self.path):
            return True
        try:
            with closing(sqlite3.connect(f"file:{quote(self.path)}?mode=ro", uri=True)) as opened:
                row = opened.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone()
        except sqlite3.Error:  # `open` will raise what is wrong with it
            return False
        return row is None

    def translate(self, error: sqlite3.Error) -> EffectOnceError:
        """``error`` as one of ours, with the remedy."""
        extended_code: int = getattr(error, "sqlite_errorcode", 0)
        code = extended_code & _PRIMARY_CODE_MASK
        if code == sqlite3.SQLITE_CANTOPEN:
            folder = os.path.dirname(self.path)
            why = "is there and may be written" if os.path.isdir(folder) else "exists (it does not)"
            return ConfigurationError(f"{self} cannot be opened; make sure that the folder {show(folder)} {why}")
        if code == sqlite3.SQLITE_NOTADB:
            return ConfigurationError(f"{self} is not a SQLite database (or is encrypted); name another file")
        if extended_code == sqlite3.SQLITE_READONLY_DBMOVED:
            return ConnectionLost(f"{self} was moved or deleted while it was open; the next call opens the path again")
        if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
            return ConfigurationError(
                f"{self} may only be read; give this user write access to the file and to its folder"
            )
        if code == sqlite3.SQLITE_FULL:
            return StoreUnavailable(f"the disk of {self} is full; nothing was recorded: make room")
        if code == sqlite3.SQLITE_CORRUPT:
            return StoreUnavailable(
                f"{self} is damaged ({error}); restore a backup, or rescue it with the .recover command of sqlite3"
            )
        if code == sqlite3.SQLITE_IOERR:
            return ConnectionLost(f"{self} could not be read or written ({error}); check its disk")
        if "no such table" in str(error) or "no such column" in str(error):
            return SchemaMissing(f"{self} lacks a table or a column ({error}); run: effectonce migrate {self}")
        if code == 0 and "decode" in str(error):
            return CorruptRecord(f"{self} holds a text that is not UTF-8, written by another program: {show(error)}")
        return StoreUnavailable(f"{self}: {show(error)}")

    def __str__(self) -> str:
        return self._shown


def _is_busy(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & _PRIMARY_CODE_MASK in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def parse_prefix(text: str) -> str:
    """A prefix for table names, from a URL's options."""
    if f"{text}_".lower().startswith("sqlite_"):
        raise InvalidOption("SQLite reserves names that begin with sqlite_; choose another prefix")
    return table_prefix(text)


def _synchronous(text: str) -> str:
    level = text.upper()
    if level not in SYNCHRONOUS_LEVELS:
        raise ValueError(f"{text!r} is not one of {', '.join(SYNCHRONOUS_LEVELS)}")
    return level


class _Closable(Protocol):
    async def close(self) -> None: ...


PortT = TypeVar("PortT", bound=_Closable)


class ThreadedAdapter(Generic[PortT]):
    """A sync port for an event loop: every call runs on one thread of its own.

    A call that is cancelled before its turn is not made. One that is under way is finished on the thread, and the next
    waits for it there: no call ever meets a connection in the middle of another's work.
    """

    def __init__(self, port: PortT) -> None:
        self._port = port
        self._thread: ThreadPoolExecutor | None = None

    async def _run_on_thread(self, method: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "effectonce-sqlite")
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, lambda: _result_of(method(*args, **kwargs))
        )

    async def close(self) -> None:
        """Close the connection once the call under way has ended, and let the thread go."""
        thread = self._thread
        if thread is None:
            return
        try:
            await self._run_on_thread(self._port.close)
        finally:
            self._thread = None
            thread.shutdown(wait=False)


class ThreadedPort(ThreadedAdapter[Port]):
    """A store's port on its thread."""

    async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
        return await self._run_on_thread(self._port.run, batch)

    async def get(self, scope: str, key: str) -> Record | None:
        return await self._run_on_thread(self._port.get, scope, key)

    async def list(self, query: Query) -> Page:
        return await self._run_on_thread(self._port.list, query)

    async def stats(self) -> Stats:
        return await self._run_on_thread(self._port.stats)

    async def forget(self, scope: str, key: str, retention: int) -> bool:
        return await self._run_on_thread(self._port.forget, scope, key, retention)

    async def resolve(self, scope: str, key: str, resolution: Resolution) -> bool:
        return await self._run_on_thread(self._port.resolve, scope, key, resolution)

    async def sweep(self, limit: int) -> Swept:
        return await self._run_on_thread(self._port.sweep, limit)

    async def changes(self, timeout: float) -> Sequence[tuple[str, str]]:
        return await self._run_on_thread(self._port.changes, timeout)

    async def now(self) -> int:
        return await self._run_on_thread(self._port.now)

    async def check(self) -> None:
        await self._run_on_thread(self._port.check)

    async def migrate(self) -> None:
        await self._run_on_thread(self._port.migrate)


def _result_of(coro: Coroutine[Any, Any, T]) -> T:
    """The result of a sync port's coroutine, which never suspends."""
    try:
        coro.send(None)
    except StopIteration as stop:
        value: T = stop.value
        return value
    coro.close()
    raise RuntimeError("a sync port suspended")
