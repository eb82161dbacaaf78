"""The sessions of `sqlite3` of the standard library, and for `aiosqlite`, which runs it on a thread.

All functions are written for the sync connection; `_run` calls them on the thread that may use that connection.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

from .base_session import BaseDriverSession, NamedRows, closed_connection_error, no_transaction_error, render

T = TypeVar("T")

_HOW_TO_BEGIN = "conn.execute('BEGIN IMMEDIATE'), or connect without isolation_level=None and autocommit=True"


class SQLiteSession(BaseDriverSession):
    """A connection of the standard library."""

    __slots__ = ()
    dialect = "sqlite"
    is_async = False

    def require_transaction(self) -> None:
        require_transaction(self.connection)

    async def _run(self, function: Callable[..., T], *args: Any) -> T:
        return function(self.connection, *args)

    async def _send(self, sql: str, params: Sequence[Any]) -> NamedRows:
        return await self._run(execute, sql, params)

    async def savepoint(self) -> Any:
        # Outside of a transaction a savepoint would begin one, and its release would commit it. So begin one as sqlite3
        # itself does before an INSERT.
        if not self.connection.in_transaction:
            await self.rows(f"BEGIN {self.connection.isolation_level or ''}")
        return await super().savepoint()

    async def _in_transaction(self) -> bool:
        return await self._run(lambda conn: conn.in_transaction and autocommit_mode(conn) is not False)

    async def has_ended(self) -> bool:
        return not await self._run(lambda conn: conn.in_transaction)

    async def _begin(self) -> None:
        if await self._run(autocommit_mode) is not False:
            await self.rows("BEGIN IMMEDIATE")

    async def _commit(self) -> None:
        await self._run(end_transaction, "COMMIT")

    async def roll_back(self) -> None:
        await self._run(end_transaction, "ROLLBACK")


class AsyncSQLiteSession(SQLiteSession):
    """A connection of aiosqlite. A statement is one call on its thread; through aiosqlite's cursors it would be 4."""

    __slots__ = ("_check_first",)
    is_async = True
    outlives_cancel = True

    def require_transaction(self) -> None:
        try:
            # Whether it is in autocommit may be read on its own thread only: `_run` checks that before its first call.
            self._check_first = not self.connection._conn.in_transaction
        except (ValueError, sqlite3.ProgrammingError) as error:
            raise closed_connection_error(error) from error

    async def _run(self, function: Callable[..., T], *args: Any) -> T:
        if getattr(self, "_check_first", False):
            self._check_first = False
            function = with_transaction_check(function)
        result: T = await self.connection._execute(function, self.connection._conn, *args)
        return result


def autocommit_mode(connection: sqlite3.Connection) -> bool | Literal[-1]:
    """The connection's attribute ``autocommit``, which Python has since 3.12.

    True: a transaction is open only after BEGIN. False: one is always open. -1, also before 3.12: sqlite3 begins one by
    ``isolation_level``.
    """
    mode: bool | Literal[-1] = getattr(connection, "autocommit", -1)
    return mode


def is_autocommit(connection: sqlite3.Connection) -> bool:
    """Whether a statement outside of a transaction commits by itself."""
    mode = autocommit_mode(connection)
    return connection.isolation_level is None if mode == -1 else mode


def require_transaction(connection: sqlite3.Connection) -> None:
    try:
        would_commit = not connection.in_transaction and is_autocommit(connection)
    except sqlite3.ProgrammingError as error:
        if "closed" not in str(error):
            raise
        raise closed_connection_error(error) from error
    if would_commit:
        raise no_transaction_error(_HOW_TO_BEGIN)


def with_transaction_check(function: Callable[..., T]) -> Callable[..., T]:
    """``function``, preceded by `require_transaction` on the same thread."""

    def check_and_call(connection: sqlite3.Connection, *args: Any) -> T:
        require_transaction(connection)
        return function(connection, *args)

    return check_and_call


def execute(connection: sqlite3.Connection, sql: str, params: Sequence[Any]) -> NamedRows:
    # `connection.cursor()` would use the connection's row factory.
    cursor = sqlite3.Cursor(connection)
    try:
        cursor.execute(*render(sql, params, "?"))
        return [column[0] for column in cursor.description or ()], cursor.fetchall()
    finally:
        cursor.close()


def end_transaction(connection: sqlite3.Connection, statement: Literal["COMMIT", "ROLLBACK"]) -> None:
    """Commit or roll back.

    With ``autocommit=False`` the connection's methods do it, since they also begin the next transaction. With
    ``autocommit=True`` the methods do nothing, so the statement itself is executed.
    """
    if autocommit_mode(connection) is not False:
        if connection.in_transaction:
            execute(connection, statement, ())
    elif statement == "COMMIT":
        connection.commit()
    else:
        connection.rollback()
