"""Which adapter fits a connection: `session_on` looks at the connection's class and loads the one module it needs.

No driver is imported for that: a connection exists only where its driver is imported already.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from effectonce.errors import ConfigurationError, show

from .base import DriverAdapter

#: By the qualified name of a connection's class: the module in this package, and the adapter in it, of that class and
#: its subclasses.
ADAPTERS: Final = {
    "sqlite3.Connection": ("sqlite", "SQLiteSession"),
    "aiosqlite.core.Connection": ("sqlite", "AsyncSQLiteSession"),
    "psycopg.Connection": ("psycopg", "PsycopgSession"),
    "psycopg.AsyncConnection": ("psycopg", "AsyncPsycopgSession"),
    "asyncpg.connection.Connection": ("asyncpg", "AsyncpgSession"),
    "asyncpg.pool.PoolConnectionProxy": ("asyncpg", "AsyncpgSession"),
    "pymysql.connections.Connection": ("mysql", "MySQLSession"),
    "aiomysql.connection.Connection": ("mysql", "AsyncMySQLSession"),
    "sqlalchemy.orm.session.Session": ("sqlalchemy", "SQLAlchemySession"),
    "sqlalchemy.orm.scoping.scoped_session": ("sqlalchemy", "SQLAlchemySession"),
    "sqlalchemy.engine.base.Connection": ("sqlalchemy", "SQLAlchemySession"),
    "sqlalchemy.ext.asyncio.session.AsyncSession": ("sqlalchemy", "AsyncSQLAlchemySession"),
    "sqlalchemy.ext.asyncio.scoping.async_scoped_session": ("sqlalchemy", "AsyncSQLAlchemySession"),
    "sqlalchemy.ext.asyncio.engine.AsyncConnection": ("sqlalchemy", "AsyncSQLAlchemySession"),
    "django.utils.connection.ConnectionProxy": ("django", "DjangoSession"),
    "django.db.backends.base.base.BaseDatabaseWrapper": ("django", "DjangoSession"),
}
SUPPORTED_CONNECTIONS: Final = (
    "sqlite3.Connection, aiosqlite.Connection, psycopg.Connection and AsyncConnection, asyncpg.Connection, "
    "pymysql.Connection, aiomysql.Connection, SQLAlchemy's Session, Connection, AsyncSession and AsyncConnection, and "
    "django.db.connection"
)

AdapterFactory = Callable[[Any], DriverAdapter]

_factories: dict[type, AdapterFactory] = {}  # by the class of a connection


def session_on(connection: Any) -> DriverAdapter:
    """Return the session on ``connection``, in the transaction that is open there, which stays its owner's to end.

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
    return kind in _factories or any(_qualified_name(base) in ADAPTERS for base in kind.__mro__)


def register_adapter(kind: type, factory: AdapterFactory) -> None:
    """Have `session_on` adapt connections of exactly this class with ``factory``."""
    _factories[kind] = factory


def _load_factory(kind: type) -> AdapterFactory:
    for base in kind.__mro__:
        if _qualified_name(base) in ADAPTERS:
            module, name = ADAPTERS[_qualified_name(base)]
            factory: AdapterFactory = getattr(import_module(f"{__package__}.{module}"), name)
            return factory
    raise ConfigurationError(
        f"{show(kind.__module__)}.{show(kind.__qualname__)} is not a connection that effectonce can join; pass one of "
        f"{SUPPORTED_CONNECTIONS} (the connection itself: not a cursor, engine or pool)"
    )


def _qualified_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
