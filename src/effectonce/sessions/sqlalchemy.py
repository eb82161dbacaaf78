"""SQLAlchemy 2: `Session` and `Connection`, and their async twins, over PostgreSQL, MySQL and SQLite.

All is written for the sync objects; the async ones run it by ``run_sync``. Statements go to the driver as they are
(``exec_driver_sql``), on the connection that the session's transaction has.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from effectonce.contracts import Dialect
from effectonce.errors import ConfigurationError, show

from .base import Caller, Named, closed, not_in_transaction, render, somebody_elses
from .sqlite import commits_by_itself

T = TypeVar("T")

_HOW = "an engine without isolation_level='AUTOCOMMIT'"
_DIALECTS: dict[str, Dialect] = {
    "postgresql": "postgresql",
    "mysql": "mysql",
    "mariadb": "mysql",
    "sqlite": "sqlite",
}


class SQLAlchemySession(Caller):
    __slots__ = ("_flavour", "dialect")
    is_async = False

    def __init__(self, connection: Any, flavour: Any) -> None:
        super().__init__(connection)
        known = _DIALECTS.get(flavour.name)
        if known is None:
            raise ConfigurationError(
                f"this SQLAlchemy object speaks {show(flavour.name)}; effectonce joins transactions on PostgreSQL, "
                "MySQL, MariaDB and SQLite"
            )
        self.dialect = known
        self._flavour = flavour

    @property
    def returning(self) -> bool:  # type: ignore[override]
        return self.dialect != "mysql" or bool(self._flavour.is_mariadb)

    def require_transaction(self) -> None:
        """Whether it is closed; a session commits by itself only if its driver does, which `_connection` asks."""
        if getattr(self.connection, "closed", False):
            raise closed()

    async def _on(self, do: Callable[..., T], *args: Any) -> T:
        return do(self.connection, *args)

    async def _send(self, sql: str, params: Sequence[Any], named: bool) -> Named:
        return await self._on(_execute, sql, params, named)

    # An ORM remembers what was flushed: its own savepoints make it forget what is undone, pending objects included.

    async def savepoint(self) -> Any:
        return await self._on(_savepoint)

    async def release(self, savepoint: Any) -> None:
        await self._on(lambda target: savepoint.commit())

    async def roll_back_to(self, savepoint: Any) -> None:
        await self._on(lambda target: savepoint.rollback())

    async def _in_transaction(self) -> bool:
        return bool(self.connection.in_transaction())

    async def begin(self) -> None:
        # A session that is bound to a connection joins the transaction there, and leaves its end to its owner.
        bound = await self._on(_bound)
        if bound is not None and bound.in_transaction():
            raise somebody_elses()
        await super().begin()

    async def _begin(self) -> None:
        await self._on(lambda target: target.begin())

    async def _commit(self) -> None:
        await self._on(lambda target: target.commit())

    async def roll_back(self) -> None:
        await self._on(lambda target: target.rollback())


class AsyncSQLAlchemySession(SQLAlchemySession):
    __slots__ = ()
    is_async = True

    async def _on(self, do: Callable[..., T], *args: Any) -> T:
        done: T = await self.connection.run_sync(do, *args)
        return done


def sqlalchemy_session(target: Any) -> SQLAlchemySession:
    return SQLAlchemySession(target, _flavour(target))


def async_sqlalchemy_session(target: Any) -> AsyncSQLAlchemySession:
    if hasattr(target, "registry"):  # an async_scoped_session, which has no `run_sync` of its own
        target = target()
    return AsyncSQLAlchemySession(target, _flavour(target))


def _flavour(target: Any) -> Any:
    """SQLAlchemy's dialect. A connection has it; a session has it from what it is bound to."""
    if not hasattr(target, "get_bind"):
        return target.dialect
    session = target() if hasattr(target, "registry") else target
    session = getattr(session, "sync_session", session)
    named = getattr(session, "binds", None) or getattr(session, "_Session__binds", {})  # 2.1, and before
    binds = {bind.engine for bind in (session.bind, *named.values()) if bind is not None}
    if len(binds) > 1 or (binds and session.bind is None):
        raise ConfigurationError(
            "this session has more than one database, or one that its tables name: the record would be committed apart "
            "from the effect; pass the connection of the one that has both: "
            "session.connection(bind_arguments={'mapper': Order})"
        )
    return target.get_bind().dialect


def _bound(target: Any) -> Any:
    """The connection that a session is bound to; None: to an engine."""
    bound = target.get_bind() if hasattr(target, "get_bind") else None
    return bound if hasattr(bound, "in_transaction") else None


def _connection(target: Any) -> Any:
    """The connection of a session's transaction, begun as its first statement would begin it."""
    if hasattr(target, "get_bind"):
        connection = target.connection()
    else:
        connection = target
        if not target.in_transaction():
            target.begin()
    if _commits_by_itself(connection):
        raise not_in_transaction(_HOW)
    return connection


def _execute(target: Any, sql: str, params: Sequence[Any], named: bool) -> Named:
    connection = _connection(target)
    style = connection.dialect.paramstyle
    if style != "numeric_dollar":
        sql, params = render(sql, params, "?" if style == "qmark" else "%s")
    result = connection.exec_driver_sql(sql, tuple(params) or None)
    if not result.returns_rows:
        return (), ()
    return list(result.keys()) if named else (), [tuple(row) for row in result]


def _savepoint(target: Any) -> Any:
    connection = _connection(target)
    if connection.dialect.name == "sqlite" and not _sqlite(connection).in_transaction:
        # Outside of a transaction a savepoint would be one, and its release the commit.
        connection.exec_driver_sql("BEGIN")
    return target.begin_nested()


def _commits_by_itself(connection: Any) -> bool:
    if connection.dialect.name == "sqlite":
        raw = _sqlite(connection)
        try:
            return not raw.in_transaction and commits_by_itself(raw)
        except sqlite3.ProgrammingError:  # that of aiosqlite tells other threads this much
            return raw.isolation_level is None
    raw = connection.connection.dbapi_connection
    ask = getattr(raw, "get_autocommit", None)
    return bool(ask() if ask is not None else raw.autocommit)


def _sqlite(connection: Any) -> Any:
    raw = connection.connection.driver_connection
    return getattr(raw, "_conn", raw)  # aiosqlite's has the real one inside
