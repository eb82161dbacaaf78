"""The session classes by the class of connection: `session_on` looks up the one that fits, and imports its module.

That imports no driver: where there is a connection, its driver was imported before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final

from effectonce.errors import ConfigurationError, show

from .base_session import BaseDriverSession

#: By the qualified name of a connection's class: the module in this package, and the session class in that module.
#: It also serves the subclasses. Keep `SUPPORTED_CONNECTIONS` in step.
SESSION_CLASSES: Final = {
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

SessionFactory = Callable[[Any], BaseDriverSession]

_factories: dict[type, SessionFactory] = {}  # by the class of a connection: those that are looked up or registered
_wrapper: Callable[[BaseDriverSession], BaseDriverSession] | None = None  # see `wrap_sessions`


def session_on(connection: Any) -> BaseDriverSession:
    """Return the session on ``connection``. It works in the transaction that is open there, and never ends it.

    Nothing is sent. Raises `ConfigurationError` for an object of a driver that effectonce does not support.
    """
    kind = type(connection)
    factory = _factories.get(kind)
    if factory is None:
        factory = _factories[kind] = _load_factory(kind)
    session = factory(connection)
    return session if _wrapper is None else _wrapper(session)


def is_connection(connection: Any) -> bool:
    """Whether `session_on` accepts ``connection``."""
    kind = type(connection)
    return kind in _factories or any(_qualified_name(base) in SESSION_CLASSES for base in kind.__mro__)


def register_session(kind: type, factory: SessionFactory) -> None:
    """Let `session_on` use ``factory`` for connections of exactly this class, not of its subclasses."""
    _factories[kind] = factory


@contextmanager
def wrap_sessions(wrapper: Callable[[BaseDriverSession], BaseDriverSession]) -> Iterator[None]:
    """Let `session_on` pass every session through ``wrapper`` inside the ``with``: for tests that inject faults."""
    global _wrapper
    before, _wrapper = _wrapper, wrapper
    try:
        yield
    finally:
        _wrapper = before


def _load_factory(kind: type) -> SessionFactory:
    for base in kind.__mro__:
        if _qualified_name(base) in SESSION_CLASSES:
            module, name = SESSION_CLASSES[_qualified_name(base)]
            factory: SessionFactory = getattr(import_module(f"{__package__}.{module}"), name)
            return factory
    if kind is str:
        raise ConfigurationError(
            "a URL or another text is not a connection that effectonce can join: open it, and pass one of "
            f"{SUPPORTED_CONNECTIONS} (eo.connect(url) opens a store, for eo.once and eo.block)"
        )
    raise ConfigurationError(
        f"{show(kind.__module__)}.{show(kind.__qualname__)} is not a connection that effectonce can join; pass one of "
        f"{SUPPORTED_CONNECTIONS} (the connection itself: not a cursor, engine or pool)"
    )


def _qualified_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
