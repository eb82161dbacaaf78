"""The caller's own connection, whatever driver made it, as a `Session`.

`session_on` looks at the type of what it was given and loads the one module that knows it. No driver is imported for
that: an object of a driver that is not installed cannot have been given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from effectonce.errors import ConfigurationError, show

from .base import Caller
from .sql_errors import cannot_connect, is_duplicate, is_without_unique_key

__all__ = ["Caller", "cannot_connect", "is_duplicate", "is_without_unique_key", "knows", "session_on"]

WORKS = (
    "sqlite3.Connection, aiosqlite.Connection, psycopg.Connection and AsyncConnection, asyncpg.Connection, "
    "pymysql.Connection, aiomysql.Connection, SQLAlchemy's Session, Connection, AsyncSession and AsyncConnection, and "
    "django.db.connection"
)

Adapter = Callable[[Any], Caller]

_known: dict[type, Adapter] = {}


def session_on(connection: Any) -> Caller:
    """The session on ``connection``: the transaction that is open there, and stays its owner's.

    `ConfigurationError` for an object of no driver that effectonce knows. Nothing is sent.
    """
    kind = type(connection)
    adapter = _known.get(kind)
    if adapter is None:
        adapter = _known[kind] = _adapter(kind)
    return adapter(connection)


def knows(connection: Any) -> bool:
    """Whether `session_on` would take it."""
    kind = type(connection)
    return kind in _known or any(f"{each.__module__}.{each.__qualname__}" in _ADAPTERS for each in kind.__mro__)


def _adapter(kind: type) -> Adapter:
    for each in kind.__mro__:
        load = _ADAPTERS.get(f"{each.__module__}.{each.__qualname__}")
        if load is not None:
            return load()
    raise ConfigurationError(
        f"{show(kind.__module__)}.{show(kind.__qualname__)} is no connection that effectonce can join; pass one of "
        f"{WORKS} (the connection itself: no cursor, engine or pool)"
    )


def _sqlite() -> Adapter:
    from .sqlite import SQLiteSession

    return SQLiteSession


def _aiosqlite() -> Adapter:
    from .sqlite import AsyncSQLiteSession

    return AsyncSQLiteSession


def _psycopg() -> Adapter:
    from .psycopg import PsycopgSession

    return PsycopgSession


def _async_psycopg() -> Adapter:
    from .psycopg import AsyncPsycopgSession

    return AsyncPsycopgSession


def _asyncpg() -> Adapter:
    from .asyncpg import AsyncpgSession

    return AsyncpgSession


def _pymysql() -> Adapter:
    from .mysql import MySQLSession

    return MySQLSession


def _aiomysql() -> Adapter:
    from .mysql import AsyncMySQLSession

    return AsyncMySQLSession


def _sqlalchemy() -> Adapter:
    from .sqlalchemy import sqlalchemy_session

    return sqlalchemy_session


def _async_sqlalchemy() -> Adapter:
    from .sqlalchemy import async_sqlalchemy_session

    return async_sqlalchemy_session


def _django() -> Adapter:
    from .django import DjangoSession

    return DjangoSession


#: The class of a connection, by the name that its driver gives it: which adapter knows it and its subclasses.
_ADAPTERS: dict[str, Callable[[], Adapter]] = {
    "sqlite3.Connection": _sqlite,
    "aiosqlite.core.Connection": _aiosqlite,
    "psycopg.Connection": _psycopg,
    "psycopg.AsyncConnection": _async_psycopg,
    "asyncpg.connection.Connection": _asyncpg,
    "asyncpg.pool.PoolConnectionProxy": _asyncpg,
    "pymysql.connections.Connection": _pymysql,
    "aiomysql.connection.Connection": _aiomysql,
    "sqlalchemy.orm.session.Session": _sqlalchemy,
    "sqlalchemy.orm.scoping.scoped_session": _sqlalchemy,
    "sqlalchemy.engine.base.Connection": _sqlalchemy,
    "sqlalchemy.ext.asyncio.session.AsyncSession": _async_sqlalchemy,
    "sqlalchemy.ext.asyncio.scoping.async_scoped_session": _async_sqlalchemy,
    "sqlalchemy.ext.asyncio.engine.AsyncConnection": _async_sqlalchemy,
    "django.utils.connection.ConnectionProxy": _django,
    "django.db.backends.base.base.BaseDatabaseWrapper": _django,
}
