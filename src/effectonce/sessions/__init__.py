"""The caller's own connection, whatever driver made it, as a `contracts.DriverSession`.

`session_on` looks at the type of the connection and loads the one module that adapts it. No driver is imported for
that: a connection exists only where its driver is imported already.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from effectonce.errors import ConfigurationError, show

from .base import DriverAdapter
from .sql_errors import connect_error, is_duplicate_key, is_without_unique_key

__all__ = [
    "DriverAdapter",
    "connect_error",
    "is_connection",
    "is_duplicate_key",
    "is_without_unique_key",
    "register_adapter",
    "session_on",
]

SUPPORTED_CONNECTIONS = (
    "sqlite3.Connection, aiosqlite.Connection, psycopg.Connection and AsyncConnection, asyncpg.Connection, "
    "pymysql.Connection, aiomysql.Connection, SQLAlchemy's Session, Connection, AsyncSession and AsyncConnection, and "
    "django.db.connection"
)

AdapterFactory = Callable[[Any], DriverAdapter]

_factories: dict[type, AdapterFactory] = {}


def session_on(connection: Any) -> DriverAdapter:
    """The session on ``connection``, in the transaction that is open there, which stays its owner's to end.

    `ConfigurationError` for an object of a driver that effectonce does not support. Nothing is sent.
    """
    kind = type(connection)
    factory = _factories.get(kind)
    if factory is None:
        factory = _factories[kind] = _load_factory(kind)
    return factory(connection)


def is_connection(connection: Any) -> bool:
    """Whether `session_on` supports it."""
    kind = type(connection)
    return kind in _factories or any(_qualified_name(base) in _LOADERS for base in kind.__mro__)


def register_adapter(kind: type, factory: AdapterFactory) -> None:
    """Have `session_on` adapt connections of exactly this class with ``factory``."""
    _factories[kind] = factory


def _qualified_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _load_factory(kind: type) -> AdapterFactory:
    for base in kind.__mro__:
        load = _LOADERS.get(_qualified_name(base))
        if load is not None:
            return load()
    raise ConfigurationError(
        f"{show(kind.__module__)}.{show(kind.__qualname__)} is not a connection that effectonce can join; pass one of "
        f"{SUPPORTED_CONNECTIONS} (the connection itself: not a cursor, engine or pool)"
    )


def _sqlite() -> AdapterFactory:
    from .sqlite import SQLiteSession

    return SQLiteSession


def _aiosqlite() -> AdapterFactory:
    from .sqlite import AsyncSQLiteSession

    return AsyncSQLiteSession


def _psycopg() -> AdapterFactory:
    from .psycopg import PsycopgSession

    return PsycopgSession


def _async_psycopg() -> AdapterFactory:
    from .psycopg import AsyncPsycopgSession

    return AsyncPsycopgSession


def _asyncpg() -> AdapterFactory:
    from .asyncpg import AsyncpgSession

    return AsyncpgSession


def _pymysql() -> AdapterFactory:
    from .mysql import MySQLSession

    return MySQLSession


def _aiomysql() -> AdapterFactory:
    from .mysql import AsyncMySQLSession

    return AsyncMySQLSession


def _sqlalchemy() -> AdapterFactory:
    from .sqlalchemy import sqlalchemy_session

    return sqlalchemy_session


def _async_sqlalchemy() -> AdapterFactory:
    from .sqlalchemy import async_sqlalchemy_session

    return async_sqlalchemy_session


def _django() -> AdapterFactory:
    from .django import DjangoSession

    return DjangoSession


#: By the qualified name of a connection's class: what loads the adapter of that class and its subclasses.
_LOADERS: dict[str, Callable[[], AdapterFactory]] = {
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
