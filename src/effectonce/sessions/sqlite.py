"""`sqlite3` of the standard library, and `aiosqlite`, which runs it on a thread.

All is written for the sync connection; `_on` runs it where that may be used.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

from .base import Caller, Named, closed, not_in_transaction, render

T = TypeVar("T")

_HOW = "conn.execute('BEGIN IMMEDIATE'), or connect without isolation_level=None and autocommit=True"


class SQLiteSession(Caller):
    __slots__ = ()
    dialect = "sqlite"
    is_async = False

    def require_transaction(self) -> None:
        require_transaction(self.connection)

    async def _on(self, do: Callable[..., T], *args: Any) -> T:
        return do(self.connection, *args)

    async def _send(self, sql: str, params: Sequence[Any], named: bool) -> Named:
        return await self._on(execute, sql, params, named)

    async def savepoint(self) -> Any:
        # Outside of a transaction a savepoint would be one, and its release the commit: begin the one that the module
        # begins before every INSERT.
        if not self.connection.in_transaction:
            await self.rows(f"BEGIN {self.connection.isolation_level or ''}")
        return await super().savepoint()

    async def _in_transaction(self) -> bool:
        return await self._on(lambda raw: raw.in_transaction and mode(raw) is not False)

    async def has_ended(self) -> bool:
        return not await self._on(lambda raw: raw.in_transaction)

    async def _begin(self) -> None:
        if await self._on(mode) is not False:
            await self.rows("BEGIN IMMEDIATE")

    async def _commit(self) -> None:
        await self._on(end, "COMMIT")

    async def roll_back(self) -> None:
        await self._on(end, "ROLLBACK")


class AsyncSQLiteSession(SQLiteSession):
    """One hop to aiosqlite's thread a statement; its own cursors would take four."""

    __slots__ = ("_required",)
    is_async = True
    outlives_cancel = True

    def require_transaction(self) -> None:
        try:
            self._required = not self.connection._conn.in_transaction  # more may be asked on its own thread only
        except (ValueError, sqlite3.ProgrammingError) as error:
            raise closed(error) from error

    async def _on(self, do: Callable[..., T], *args: Any) -> T:
        if getattr(self, "_required", False):
            self._required = False
            do = required(do)
        done: T = await self.connection._execute(do, self.connection._conn, *args)
        return done


def mode(connection: sqlite3.Connection) -> bool | Literal[-1]:
    """`autocommit` of Python 3.12. True: there is no transaction but with BEGIN; False: there always is one; -1: as
    before, by ``isolation_level``."""
    found: bool | Literal[-1] = getattr(connection, "autocommit", -1)
    return found


def commits_by_itself(connection: sqlite3.Connection) -> bool:
    """Whether a statement outside of a transaction is one."""
    found = mode(connection)
    return connection.isolation_level is None if found == -1 else found


def require_transaction(connection: sqlite3.Connection) -> None:
    try:
        alone = not connection.in_transaction and commits_by_itself(connection)
    except sqlite3.ProgrammingError as error:
        if "closed" not in str(error):
            raise
        raise closed(error) from error
    if alone:
        raise not_in_transaction(_HOW)


def required(do: Callable[..., T]) -> Callable[..., T]:
    """``do``, once it is known that the connection has a transaction, or will have one by its first statement."""

    def checked(connection: sqlite3.Connection, *args: Any) -> T:
        require_transaction(connection)
        return do(connection, *args)

    return checked


def execute(connection: sqlite3.Connection, sql: str, params: Sequence[Any], named: bool) -> Named:
    # A cursor of our own making has no row factory; one from the connection would have the connection's.
    cursor = sqlite3.Cursor(connection)
    try:
        cursor.execute(*render(sql, params, "?"))
        return [column[0] for column in cursor.description or ()] if named else (), cursor.fetchall()
    finally:
        cursor.close()


def end(connection: sqlite3.Connection, how: Literal["COMMIT", "ROLLBACK"]) -> None:
    """In SQL: where `autocommit` is True, the methods do nothing. Where it is False, they begin the next one, too."""
    if mode(connection) is False:
        connection.commit() if how == "COMMIT" else connection.rollback()
    elif connection.in_transaction:
        execute(connection, how, (), False)
