"""The sessions of SQLAlchemy 2: for `Session` and `Connection`, and their async forms.

All functions are written for the sync objects; an async object calls them through its ``run_sync``. Their argument
``target`` is a session or a connection. Statements go to the driver unchanged (``exec_driver_sql``), on the connection
of the session's transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from sqlalchemy import event

from effectonce.errors import ConfigurationError

from .base_session import (
    BaseDriverSession,
    NamedRows,
    closed_connection_error,
    foreign_transaction,
    known_dialect,
    no_transaction_error,
    render,
)
from .sqlite import is_autocommit

T = TypeVar("T")

_HOW_TO_BEGIN = "an engine without isolation_level='AUTOCOMMIT'"


class SQLAlchemySession(BaseDriverSession):
    """A `Session`, a `scoped_session` or a `Connection` of SQLAlchemy."""

    __slots__ = ("_sqlalchemy_dialect", "dialect")
    is_async = False

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self._sqlalchemy_dialect = _dialect_of(connection)
        self.dialect = known_dialect(self._sqlalchemy_dialect.name, "SQLAlchemy object")

    @property
    def has_returning(self) -> bool:  # type: ignore[override]
        return self.dialect != "mysql" or bool(self._sqlalchemy_dialect.is_mariadb)

    def require_transaction(self) -> None:
        """Refuse a closed object. `_connection` refuses autocommit, with the first statement: before that, a session
        has no connection to check."""
        if getattr(self.connection, "closed", False):
            raise closed_connection_error()

    async def _run(self, function: Callable[..., T], *args: Any) -> T:
        return function(self.connection, *args)

    async def _send(self, sql: str, params: Sequence[Any]) -> NamedRows:
        return await self._run(_execute, sql, params)

    # SQLAlchemy's own savepoints: after a rollback they make the ORM forget what it flushed, pending objects included.

    async def savepoint(self) -> Any:
        return await self._run(_savepoint)

    async def release(self, savepoint: Any) -> None:
        await self._run(lambda target: savepoint.commit())

    async def roll_back_to(self, savepoint: Any) -> None:
        await self._run(lambda target: savepoint.rollback())

    async def _in_transaction(self) -> bool:
        return bool(self.connection.in_transaction())

    async def begin(self) -> None:
        # A session that is bound to a connection joins the transaction there, which its owner ends.
        bound_connection = await self._run(_bound_connection)
        if bound_connection is not None and bound_connection.in_transaction():
            raise foreign_transaction()
        await super().begin()

    async def _begin(self) -> None:
        await self._run(lambda target: target.begin())

    async def _commit(self) -> None:
        await self._run(lambda target: target.commit())

    async def roll_back(self) -> None:
        await self._run(lambda target: target.rollback())


class AsyncSQLAlchemySession(SQLAlchemySession):
    """An `AsyncSession`, an `async_scoped_session` or an `AsyncConnection`."""

    __slots__ = ()
    is_async = True

    def __init__(self, connection: Any) -> None:
        # An async_scoped_session has no `run_sync` of its own.
        super().__init__(connection() if hasattr(connection, "registry") else connection)

    def refuse_commit(self, error: Exception) -> None:
        """A session and a connection tell of their commits. Only the transaction that is open now is refused.

        A session rolls back what it could not commit. A connection has ended its transaction by then, as far as it
        knows, and would commit what was written with the next one.
        """
        is_session = hasattr(self.connection, "sync_session")
        target = self.connection.sync_session if is_session else self.connection.sync_connection
        refusals = [error]

        def refuse(committing: Any) -> None:
            if refusals:
                if not is_session:
                    committing.connection.rollback()
                raise refusals.pop()

        def forget(_: Any) -> None:
            refusals.clear()

        event.listen(target, "before_commit" if is_session else "commit", refuse)
        event.listen(target, "after_rollback" if is_session else "rollback", forget)

    async def _run(self, function: Callable[..., T], *args: Any) -> T:
        result: T = await self.connection.run_sync(function, *args)
        return result


def _dialect_of(target: Any) -> Any:
    """SQLAlchemy's dialect object: that of a connection, or of the one database that a session is bound to."""
    if not hasattr(target, "get_bind"):
        return target.dialect
    session = target() if hasattr(target, "registry") else target
    session = getattr(session, "sync_session", session)
    by_table = getattr(session, "binds", None) or getattr(session, "_Session__binds", {})  # 2.1, and before
    engines = {bind.engine for bind in (session.bind, *by_table.values()) if bind is not None}
    if len(engines) > 1 or (engines and session.bind is None):
        raise ConfigurationError(
            "this session has more than one database, or one that its tables name: the record would be committed apart "
            "from the effect; pass the connection of the database that has both: "
            "session.connection(bind_arguments={'mapper': Order})"
        )
    return target.get_bind().dialect


def _bound_connection(target: Any) -> Any:
    """The connection that a session is bound to; None where it is bound to an engine."""
    bind = target.get_bind() if hasattr(target, "get_bind") else None
    return bind if hasattr(bind, "in_transaction") else None


def _connection(target: Any) -> Any:
    """The connection of the session's transaction. The transaction begins here, where it has not."""
    if hasattr(target, "get_bind"):
        connection = target.connection()
    else:
        connection = target
        if not target.in_transaction():
            target.begin()
    if _is_autocommit(connection):
        raise no_transaction_error(_HOW_TO_BEGIN)
    return connection


def _execute(target: Any, sql: str, params: Sequence[Any]) -> NamedRows:
    connection = _connection(target)
    style = connection.dialect.paramstyle
    if style != "numeric_dollar":
        sql, params = render(sql, params, "?" if style == "qmark" else "%s")
    result = connection.exec_driver_sql(sql, tuple(params) or None)
    if not result.returns_rows:
        return (), ()
    return list(result.keys()), [tuple(row) for row in result]


def _savepoint(target: Any) -> Any:
    connection = _connection(target)
    if connection.dialect.name == "sqlite" and not _sqlite_connection(connection).in_transaction:
        # Outside of a transaction a savepoint would begin one, and its release would commit it.
        connection.exec_driver_sql("BEGIN")
    return target.begin_nested()


def _is_autocommit(connection: Any) -> bool:
    if connection.dialect.name == "sqlite":
        raw = _sqlite_connection(connection)
        try:
            return not raw.in_transaction and is_autocommit(raw)
        except sqlite3.ProgrammingError:  # aiosqlite's connection: on this thread only this attribute may be read
            return raw.isolation_level is None
    raw = connection.connection.dbapi_connection
    get_autocommit = getattr(raw, "get_autocommit", None)
    return bool(raw.autocommit if get_autocommit is None else get_autocommit())


def _sqlite_connection(connection: Any) -> Any:
    raw = connection.connection.driver_connection
    return getattr(raw, "_conn", raw)  # aiosqlite's connection wraps one of sqlite3
