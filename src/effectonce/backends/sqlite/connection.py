"""SQLite through the standard library: open a file, wait for its write lock, translate its errors.

SQLite blocks, so the async colour is a thread: `Threaded` runs the sync port's methods on one of its own.
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

OLDEST = (3, 35, 0)
SYNCHRONOUS = ("FULL", "NORMAL", "EXTRA")
_LONGEST_PAUSE = 0.005


class Connection:
    """One connection to one file, for one caller at a time, on whichever thread.

    It opens when first used and again after an error. Every step is repeated while another connection holds the
    write lock, with the clock read anew each time: SQLite's own busy timeout would wait *inside* a statement,
    with the time already bound, and a lease could be over before it was written.
    """

    def __init__(self, file: File, prepare: Callable[[sqlite3.Cursor], None]) -> None:
        self._file = file
        self._prepare = prepare
        self.cursor: sqlite3.Cursor | None = None  # of the open connection, but while it is in a transaction:
        self._begun: sqlite3.Cursor | None = None

    def step(self, do: Callable[[sqlite3.Cursor, *Args], T], *args: *Args) -> T:
        """What ``do(cursor, …)`` returns. Each of its statements is a transaction of its own."""
        try:
            return do(self.cursor or self.open(), *args)
        except (sqlite3.Error, Contention) as error:
            return self.insist(error, do, *args)

    def transaction(self, do: Callable[[sqlite3.Cursor, *Args], T], *args: *Args) -> T:
        """What ``do(cursor, …)`` returns, all of it or nothing, with the write lock held from the start."""

        def within(cursor: sqlite3.Cursor) -> T:
            # Left in a transaction, by an interruption even while it is rolled back, it would answer for what it never
            # commits. So nobody finds it there, and whoever needs another closes it.
            self.cursor, self._begun = None, cursor
            try:
                cursor.execute("BEGIN IMMEDIATE")
                answer = do(cursor, *args)
                cursor.execute("COMMIT")
            except BaseException:
                self._undo(cursor)
                raise
            self.cursor, self._begun = cursor, None
            return answer

        return self.step(within)

    def _undo(self, cursor: sqlite3.Cursor) -> None:
        """Roll back; a connection that cannot is closed, which does the same."""
        try:
            if cursor.connection.in_transaction:
                cursor.execute("ROLLBACK")
            self.cursor, self._begun = cursor, None
        except sqlite3.Error:
            self.close()

    def insist(
        self,
        error: sqlite3.Error | Contention,
        do: Callable[[sqlite3.Cursor, *Args], T],
        *args: *Args,
    ) -> T:
        """Repeat while the lock is another's, up to the timeout; raise anything else translated."""
        deadline = time.monotonic() + self._file.timeout
        pause = 0.0002
        while True:
            if not isinstance(error, Contention) and not _busy(error):
                self.close()
                raise self._file.translate(error) from error
            left = deadline - time.monotonic()
            if left <= 0:
                raise StoreUnavailable(
                    f"{self._file} was locked by another connection for {self._file.timeout:g} s; end the transaction "
                    "that holds it, or raise the option timeout"
                ) from error
            # Random, so that several processes that wait for one lock do not come back in step.
            time.sleep(min(left, random.uniform(0, pause)))
            pause = min(pause * 2, _LONGEST_PAUSE)
            try:
                return do(self.cursor or self.open(), *args)
            except (sqlite3.Error, Contention) as again:
                error = again

    def open(self) -> sqlite3.Cursor:
        """A cursor of a new connection, which is the one to use from now on."""
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
        cursor, self.cursor, self._begun = self.cursor or self._begun, None, None
        if cursor is not None:
            try:
                cursor.connection.close()
            except sqlite3.Error:  # nothing can be done with it, and nothing is held by it
                pass


def run_script(cursor: sqlite3.Cursor, script: str) -> None:
    """Several statements, all or nothing, under the write lock: two processes may come here at once. For a connection
    that is closed if this fails, as one is that is being opened."""
    cursor.execute("BEGIN IMMEDIATE")
    run_statements(cursor, script)
    cursor.execute("COMMIT")


def run_statements(cursor: sqlite3.Cursor, script: str) -> None:
    """Several statements, in the transaction that the caller is in."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            cursor.execute(statement)
            statement = ""


class File:
    """A database file and how to open it, from ``sqlite:///relative.db`` or ``sqlite:////absolute/path.db``."""

    def __init__(self, address: Address) -> None:
        path = address.path[1:]
        if address.netloc:
            raise InvalidOption(
                f"{address} names a host; write sqlite:///{address.netloc} for a relative path, sqlite:////… for an "
                "absolute one"
            )
        if path in ("", ":memory:"):
            raise InvalidOption(f"{address} names no file; write sqlite:///file.db, or memory:// for no file at all")
        if "\0" in path:
            raise InvalidOption("a path cannot contain a zero byte")
        # Made absolute here: a later change of directory must not change the store.
        self.path = os.path.abspath(path)
        self.synchronous = address.take("synchronous", _synchronous, "FULL")
        self.timeout = address.seconds("timeout", 5.0)
        self._shown = str(address)
        if sqlite3.sqlite_version_info < OLDEST:
            raise ConfigurationError(
                f"this Python is built with SQLite {sqlite3.sqlite_version}; effectonce needs "
                f"{'.'.join(map(str, OLDEST))} or newer: use a newer Python build"
            )

    def open(self) -> sqlite3.Connection:
        """A new connection in WAL mode, in autocommit, that never waits by itself."""
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
        """Whether there is no such table, or no file at all. Nothing is made, as `open` would."""
        if not os.path.exists(self.path):
            return True
        try:
            with closing(sqlite3.connect(f"file:{quote(self.path)}?mode=ro", uri=True)) as opened:
                found = opened.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone()
        except sqlite3.Error:  # whoever opens it says what is wrong with it
            return False
        return found is None

    def translate(self, error: sqlite3.Error) -> EffectOnceError:
        """The error of ours that stands for ``error``, with the remedy."""
        extended: int = getattr(error, "sqlite_errorcode", 0)
        code = extended & 0xFF
        if code == sqlite3.SQLITE_CANTOPEN:
            folder = os.path.dirname(self.path)
            why = "is there and may be written" if os.path.isdir(folder) else "exists (it does not)"
            return ConfigurationError(f"{self} cannot be opened; see that the folder {show(folder)} {why}")
        if code == sqlite3.SQLITE_NOTADB:
            return ConfigurationError(f"{self} is not a SQLite database (or is encrypted); name another file")
        if extended == sqlite3.SQLITE_READONLY_DBMOVED:
            return ConnectionLost(f"{self} was moved or deleted while it was open")
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
            return ConnectionLost(f"{self} could not be read or written ({error}); see to its disk")
        if "no such table" in str(error) or "no such column" in str(error):
            return SchemaMissing(f"{self} lacks a table or a column ({error}); run: effectonce migrate {self}")
        if code == 0 and "decode" in str(error):
            return CorruptRecord(f"{self} holds a text that is not UTF-8, written by another program: {show(error)}")
        return StoreUnavailable(f"{self}: {show(error)}")

    def __str__(self) -> str:
        return self._shown


def _busy(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _synchronous(text: str) -> str:
    level = text.upper()
    if level not in SYNCHRONOUS:
        raise ValueError(f"{text!r} is not one of {', '.join(SYNCHRONOUS)}")
    return level


class _Closes(Protocol):
    async def close(self) -> None: ...


PortT = TypeVar("PortT", bound=_Closes)


class Hopping(Generic[PortT]):
    """A port for an event loop: every call is one hop to a thread of its own, where the sync port does it.

    A call that is cancelled before its turn is not made. One that is under way is finished on the thread, and
    the next waits for it there: the connection is never found half-way.
    """

    def __init__(self, port: PortT) -> None:
        self._port = port
        self._thread: ThreadPoolExecutor | None = None

    async def _hop(self, method: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "effectonce-sqlite")
        return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: _finish(method(*args, **kwargs)))

    async def close(self) -> None:
        """Close the connection once the call under way has ended, and let the thread go."""
        thread = self._thread
        if thread is None:
            return
        try:
            await self._hop(self._port.close)
        finally:
            self._thread = None
            thread.shutdown(wait=False)


class Threaded(Hopping[Port]):
    """A store's port, hopping."""

    async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
        return await self._hop(self._port.run, batch)

    async def get(self, scope: str, key: str) -> Record | None:
        return await self._hop(self._port.get, scope, key)

    async def list(self, query: Query) -> Page:
        return await self._hop(self._port.list, query)

    async def stats(self) -> Stats:
        return await self._hop(self._port.stats)

    async def forget(self, scope: str, key: str, retention: int) -> bool:
        return await self._hop(self._port.forget, scope, key, retention)

    async def resolve(self, scope: str, key: str, resolution: Resolution) -> bool:
        return await self._hop(self._port.resolve, scope, key, resolution)

    async def sweep(self, limit: int) -> Swept:
        return await self._hop(self._port.sweep, limit)

    async def changes(self, timeout: float) -> Sequence[tuple[str, str]]:
        return await self._hop(self._port.changes, timeout)

    async def now(self) -> int:
        return await self._hop(self._port.now)

    async def check(self) -> None:
        await self._hop(self._port.check)

    async def migrate(self) -> None:
        await self._hop(self._port.migrate)


def _finish(coro: Coroutine[Any, Any, T]) -> T:
    """The result of a sync port's coroutine, which never suspends."""
    try:
        coro.send(None)
    except StopIteration as stop:
        value: T = stop.value
        return value
    coro.close()
    raise RuntimeError("a sync port suspended")
