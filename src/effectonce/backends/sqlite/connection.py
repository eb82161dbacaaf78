"""A connection to a SQLite file: it waits for the file's write lock, and opens again after an error.

Ports are written once, for a `PortConnection`. For sync callers that is a `DirectConnection`, for an event loop a
`ThreadedConnection`. The decorators `in_autocommit` and `in_transaction` turn functions that take a cursor into the
coroutine methods of a port.
"""

from __future__ import annotations

import functools
import logging
import random
import sqlite3
import time
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

from effectonce.contracts import Contention
from effectonce.errors import StoreUnavailable

from .file import SQLiteFile, is_busy

log = logging.getLogger("effectonce")

P = ParamSpec("P")
T = TypeVar("T")

FIRST_LOCK_PAUSE_S: Final = 0.0002
MAX_LOCK_PAUSE_S: Final = 0.005


class SQLiteConnection:
    """One connection to one file, for one caller at a time, on any thread.

    It opens when first used, again after an error, and again when another file is at the path, or none: SQLite would go
    on with the deleted one, which no other process sees. While another connection holds the write lock, the work is
    repeated, and reads the clock again each time. SQLite's own busy timeout would wait *inside* a statement, whose
    parameters hold the time already: a lease could be over before it was written.
    """

    def __init__(self, file: SQLiteFile, prepare: Callable[[sqlite3.Cursor], None]) -> None:
        self._file = file
        self._prepare = prepare
        # The cursor of the open connection is in one of these: in the first outside of a transaction, in the second
        # inside of one.
        self._cursor: sqlite3.Cursor | None = None
        self._cursor_in_transaction: sqlite3.Cursor | None = None
        self._opened_file: tuple[int, int] | None = None

    def execute(self, work: Callable[[sqlite3.Cursor], T]) -> T:
        """Call ``work`` with the cursor, in autocommit: each of its statements is a transaction of its own. While
        another connection holds the lock, it is called again, up to the timeout."""
        deadline = time.monotonic() + self._file.timeout
        pause = FIRST_LOCK_PAUSE_S
        while True:
            try:
                cursor = self._cursor
                if cursor is None or self._file.identify() != self._opened_file:
                    cursor = self._open()
                return work(cursor)
            except (sqlite3.Error, Contention) as error:
                if not isinstance(error, Contention) and not is_busy(error):
                    self.close()
                    raise self._file.translate(error) from error
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    raise StoreUnavailable(
                        f"{self._file} was locked by another connection for {self._file.timeout:g} s; end the "
                        "transaction that holds it, or raise the option timeout"
                    ) from error
            # Random, so that processes that wait for one lock do not retry at the same moments.
            time.sleep(min(remaining, random.uniform(0, pause)))
            pause = min(pause * 2, MAX_LOCK_PAUSE_S)

    def transaction(self, work: Callable[[sqlite3.Cursor], T]) -> T:
        """Do what `execute` does, in one transaction that holds the write lock from the start."""

        def run_transaction(cursor: sqlite3.Cursor) -> T:
            # An interruption (Ctrl-C) may leave the connection inside of the transaction, even during the rollback. The
            # next `execute` must not use it then: it would read what is never committed. It does not see this cursor,
            # and `_open` closes the connection.
            self._cursor, self._cursor_in_transaction = None, cursor
            try:
                cursor.execute("BEGIN IMMEDIATE")
                answer = work(cursor)
                cursor.execute("COMMIT")
            except BaseException:
                self._undo(cursor)
                raise
            self._cursor, self._cursor_in_transaction = cursor, None
            return answer

        return self.execute(run_transaction)

    def _undo(self, cursor: sqlite3.Cursor) -> None:
        """Roll back. Where that fails, close the connection, which has the same effect."""
        try:
            if cursor.connection.in_transaction:
                cursor.execute("ROLLBACK")
            self._cursor, self._cursor_in_transaction = cursor, None
        except sqlite3.Error:
            self.close()

    def _open(self) -> sqlite3.Cursor:
        """Open a new connection in place of the old one, and prepare its tables. Returns its cursor."""
        if self._cursor is not None:
            log.error(
                "%s was deleted or replaced while it was open, and its records are gone; the path is opened again, and "
                "operations that are not in it may run again: restore the file if that was a mistake",
                self._file,
            )
        self.close()
        opened = self._file.open()
        self._opened_file = self._file.identify()
        try:
            cursor = opened.cursor()
            self._prepare(cursor)
        except BaseException:
            opened.close()
            raise
        self._cursor = cursor
        return cursor

    def close(self) -> None:
        """Close the connection. The next use opens another."""
        cursor, self._cursor, self._cursor_in_transaction = self._cursor or self._cursor_in_transaction, None, None
        if cursor is not None:
            try:
                cursor.connection.close()
            except sqlite3.Error:  # it is given up in any case
                pass


class PortConnection(Protocol):
    """A `SQLiteConnection` behind coroutines, for sync and async callers alike."""

    async def execute(self, work: Callable[[sqlite3.Cursor], T]) -> T: ...

    async def transaction(self, work: Callable[[sqlite3.Cursor], T]) -> T: ...

    async def close(self) -> None: ...


class DirectConnection:
    """A connection that is used on the caller's thread. Its coroutines never suspend."""

    def __init__(self, connection: SQLiteConnection) -> None:
        self._connection = connection

    async def execute(self, work: Callable[[sqlite3.Cursor], T]) -> T:
        return self._connection.execute(work)

    async def transaction(self, work: Callable[[sqlite3.Cursor], T]) -> T:
        return self._connection.transaction(work)

    async def close(self) -> None:
        self._connection.close()


#: A method of a port, which has a `PortConnection` as its ``connection``: without, and with a cursor of it.
Method = Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]
WithCursor = Callable[Concatenate[Any, sqlite3.Cursor, P], T]


def _in_connection(work: WithCursor[P, T], *, transaction: bool) -> Method[P, T]:
    @functools.wraps(work)
    async def run(port: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        connection: PortConnection = port.connection
        execute = connection.transaction if transaction else connection.execute
        return await execute(lambda cursor: work(port, cursor, *args, **kwargs))

    return run


def in_autocommit(work: WithCursor[P, T]) -> Method[P, T]:
    """Turn ``work(self, cursor, …)`` into a coroutine method ``work(self, …)`` that runs it by
    `SQLiteConnection.execute`."""
    return _in_connection(work, transaction=False)


def in_transaction(work: WithCursor[P, T]) -> Method[P, T]:
    """Turn ``work(self, cursor, …)`` into a coroutine method ``work(self, …)`` that runs it by
    `SQLiteConnection.transaction`."""
    return _in_connection(work, transaction=True)


def run_script(cursor: sqlite3.Cursor, script: str) -> None:
    """Run several statements in one transaction, under the write lock, so that two processes may do so at once. After a
    failure the caller must close the connection, which rolls back."""
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
