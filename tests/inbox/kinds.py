"""Every kind of connection that the inbox and the outbox join, behind one face for the tests.

A `Desk` is one open connection with the driver's own ways of beginning, running, committing and rolling back; nothing
of effectonce is used for that. Of sync kinds its coroutines never suspend, so a test is written once for both colours.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from effectonce.contracts import Dialect

os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"  # sync kinds are tested inside of a loop, too


@dataclass(frozen=True)
class Place:
    """A database that is there: its dialect, and what drivers need to get to it."""

    dialect: Dialect
    url: str
    table: str = "effectonce_inbox"
    returning: bool = True  # False: MariaDB is asked in the way that MySQL has to be

    @property
    def path(self) -> str:
        return self.url.removeprefix("sqlite:///")

    @property
    def mysql(self) -> dict[str, Any]:
        parts = urlsplit(self.url)
        return {
            "host": parts.hostname,
            "port": parts.port or 3306,
            "user": parts.username,
            "password": parts.password or "",
        }

    @property
    def database(self) -> str:
        return urlsplit(self.url).path.removeprefix("/")

    def sqlalchemy(self, driver: str) -> str:
        scheme, rest = self.url.split("://", 1)
        return f"{'mysql' if scheme == 'mariadb' else scheme}+{driver}://{rest}"

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """On a connection of its own, so that it sees what is committed, and nothing else. It is kept: opening one
        takes longer than most tests."""
        if self.url not in observers:
            entered = self.connected()
            observers[self.url] = (entered, entered.__enter__())
        return observers[self.url][1](sql)

    @contextmanager
    def connected(self) -> Iterator[Callable[[str], list[tuple[Any, ...]]]]:
        """A plain connection in autocommit."""
        if self.dialect == "sqlite":
            raw: Any = sqlite3.connect(self.path, isolation_level=None, timeout=10)
        elif self.dialect == "postgresql":
            import psycopg

            raw = psycopg.connect(self.url, autocommit=True)
        else:
            import pymysql

            raw = pymysql.connect(**self.mysql, database=self.database, autocommit=True)

        def run(sql: str) -> list[tuple[Any, ...]]:
            cursor = raw.cursor()
            cursor.execute(sql)
            return list(cursor.fetchall()) if cursor.description else []

        try:
            yield run
        finally:
            raw.close()

    def build(self, *schemas: str) -> None:
        """Run the statements of ``schemas``, as somebody with a migration tool does."""
        with self.connected() as run:
            for schema in schemas:
                bare = "\n".join(line.partition("--")[0] for line in schema.splitlines())
                for statement in bare.split(";"):
                    if statement.strip():
                        run(statement)


observers: dict[str, tuple[Any, Callable[[str], list[tuple[Any, ...]]]]] = {}


class Desk:
    """One open connection. ``begin`` is what a user writes before the first statement: for most drivers nothing."""

    def __init__(
        self,
        conn: Any,
        run: Callable[[str], Any],
        begin: Callable[[], Any] | None = None,
        commit: Callable[[], Any] | None = None,
        roll_back: Callable[[], Any] | None = None,
        close: Callable[[], Any] | None = None,
    ) -> None:
        self.conn = conn
        self._run = run
        self._begin = begin
        self._commit = commit or conn.commit
        self._roll_back = roll_back or conn.rollback
        self._close = close or conn.close

    async def run(self, sql: str) -> None:
        await told(self._run(sql))

    async def begin(self) -> None:
        if self._begin is not None:
            await told(self._begin())

    async def commit(self) -> None:
        await told(self._commit())

    async def roll_back(self) -> None:
        await told(self._roll_back())

    async def close(self) -> None:
        await told(self._close())


@dataclass(frozen=True)
class Kind:
    name: str
    dialect: Dialect
    is_async: bool
    #: A context manager around a desk on a place.
    open: Callable[[Place], Any] = field(repr=False)
    #: One whose statements commit themselves.
    autocommit: Callable[[Place], Any] | None = field(default=None, repr=False)
    #: What `Inbox.handler(connect=…)` is given, inside a context manager that ends it.
    connect: Callable[[Place], Any] | None = field(default=None, repr=False)


async def told(answer: Any) -> Any:
    """The answer of a call of either colour."""
    return await answer if hasattr(answer, "__await__") else answer


def run_sync(conn: Any, sql: str) -> Any:
    """One statement of a handler's, on whatever sync connection it has; the cursor or result."""
    if type(conn).__module__.startswith("sqlalchemy"):
        return sqlalchemy_run(conn, sql)
    cursor = conn.cursor()
    cursor.execute(sql)
    return cursor


async def run(conn: Any, sql: str) -> None:
    """The same on an async one."""
    module = type(conn).__module__
    if module.startswith("sqlalchemy"):
        await sqlalchemy_run(conn, sql)
    elif module.startswith("aiomysql"):
        async with conn.cursor() as cursor:
            await cursor.execute(sql)
    else:
        await conn.execute(sql)


KINDS: list[Kind] = []


def kind(name: str, dialect: Dialect, is_async: bool = False, **more: Any) -> Callable[[Any], Any]:
    def add(opened: Any) -> Any:
        KINDS.append(Kind(name, dialect, is_async, opened, **more))
        return opened

    return add


def by_cursor(conn: Any) -> Callable[[str], Any]:
    return lambda sql: conn.cursor().execute(sql)


@asynccontextmanager
async def closing(desk: Desk) -> AsyncIterator[Desk]:
    try:
        yield desk
    finally:
        try:
            await desk.close()
        except Exception:  # the test has closed it
            pass


# -- sqlite3 and aiosqlite


def sqlite(place: Place, **options: Any) -> Any:
    conn = sqlite3.connect(place.path, timeout=10, check_same_thread=False, **options)
    conn.execute("PRAGMA synchronous = FULL")
    return conn


@contextmanager
def sqlite_connect(place: Place) -> Iterator[Callable[[], Any]]:
    yield lambda: sqlite(place)


@asynccontextmanager
async def sqlite3_autocommit(place: Place) -> AsyncIterator[Desk]:
    conn = sqlite(place, isolation_level=None)
    async with closing(Desk(conn, conn.execute)) as desk:
        yield desk


@kind("sqlite3", "sqlite", autocommit=sqlite3_autocommit, connect=sqlite_connect)
@asynccontextmanager
async def sqlite3_legacy(place: Place) -> AsyncIterator[Desk]:
    conn = sqlite(place)
    async with closing(Desk(conn, conn.execute)) as desk:
        yield desk


def as_dict(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> dict[str, Any]:
    return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}


@kind("sqlite3 with a row factory, and texts as bytes", "sqlite")
@asynccontextmanager
async def sqlite3_dict(place: Place) -> AsyncIterator[Desk]:
    conn = sqlite(place, isolation_level=None)
    conn.row_factory = as_dict
    conn.text_factory = bytes
    async with closing(Desk(conn, conn.execute, begin=lambda: conn.execute("BEGIN IMMEDIATE"))) as desk:
        yield desk
        assert conn.row_factory is as_dict


@contextmanager
def aiosqlite_connect(place: Place) -> Iterator[Callable[[], Any]]:
    import aiosqlite

    yield lambda: aiosqlite.connect(place.path, timeout=10)


@asynccontextmanager
async def aiosqlite_autocommit(place: Place) -> AsyncIterator[Desk]:
    import aiosqlite

    conn = await aiosqlite.connect(place.path, isolation_level=None)
    async with closing(Desk(conn, conn.execute)) as desk:
        yield desk


@kind("aiosqlite", "sqlite", True, autocommit=aiosqlite_autocommit, connect=aiosqlite_connect)
@asynccontextmanager
async def aiosqlite_kind(place: Place) -> AsyncIterator[Desk]:
    import aiosqlite

    conn = await aiosqlite.connect(place.path, timeout=10)
    conn.row_factory = as_dict  # type: ignore[assignment]
    async with closing(Desk(conn, conn.execute)) as desk:
        yield desk


# -- psycopg and asyncpg


@contextmanager
def psycopg_connect(place: Place) -> Iterator[Callable[[], Any]]:
    from psycopg_pool import ConnectionPool

    with ConnectionPool(place.url, min_size=1, max_size=4, timeout=2) as pool:
        yield pool.connection


@asynccontextmanager
async def psycopg_autocommit(place: Place) -> AsyncIterator[Desk]:
    import psycopg

    conn = psycopg.connect(place.url, autocommit=True)
    async with closing(Desk(conn, conn.execute)) as desk:
        yield desk


@kind("psycopg", "postgresql", autocommit=psycopg_autocommit, connect=psycopg_connect)
@asynccontextmanager
async def psycopg_kind(place: Place) -> AsyncIterator[Desk]:
    import psycopg

    conn = psycopg.connect(place.url)
    async with closing(Desk(conn, conn.execute)) as desk:
        yield desk


@kind("psycopg with dict_row, client cursors and autocommit, in conn.transaction()", "postgresql")
@asynccontextmanager
async def psycopg_dict(place: Place) -> AsyncIterator[Desk]:
    import psycopg
    from psycopg.rows import dict_row

    conn: Any = psycopg.connect(place.url, autocommit=True, row_factory=dict_row)  # type: ignore[arg-type]
    conn.cursor_factory = psycopg.ClientCursor
    block: list[Any] = []

    def begin() -> None:
        block.append(conn.transaction())
        block[-1].__enter__()

    def commit() -> None:
        block.pop().__exit__(None, None, None)

    def roll_back() -> None:
        error = psycopg.Rollback()
        block.pop().__exit__(type(error), error, None)

    async with closing(Desk(conn, conn.execute, begin, commit, roll_back)) as desk:
        yield desk
        assert conn.row_factory is dict_row
        assert conn.cursor_factory is psycopg.ClientCursor


@kind("psycopg in a pipeline", "postgresql")
@asynccontextmanager
async def psycopg_pipeline(place: Place) -> AsyncIterator[Desk]:
    import psycopg

    conn = psycopg.connect(place.url)
    async with closing(Desk(conn, conn.execute)) as desk:
        pipeline = conn.pipeline()
        pipeline.__enter__()
        yield desk
        if not conn.closed:
            pipeline.__exit__(None, None, None)


@contextmanager
def psycopg_async_connect(place: Place) -> Iterator[Callable[[], Any]]:
    import psycopg

    yield lambda: psycopg.AsyncConnection.connect(place.url)


@asynccontextmanager
async def psycopg_async_autocommit(place: Place) -> AsyncIterator[Desk]:
    import psycopg

    conn = await psycopg.AsyncConnection.connect(place.url, autocommit=True)
    async with closing(Desk(conn, conn.execute)) as desk:
        yield desk


@kind("psycopg, async", "postgresql", True, autocommit=psycopg_async_autocommit, connect=psycopg_async_connect)
@asynccontextmanager
async def psycopg_async(place: Place) -> AsyncIterator[Desk]:
    import psycopg
    from psycopg.rows import dict_row

    conn: Any = await psycopg.AsyncConnection.connect(place.url, row_factory=dict_row)  # type: ignore[arg-type]
    async with closing(Desk(conn, conn.execute)) as desk:
        yield desk


def asyncpg_desk(conn: Any, close: Callable[[], Any] | None = None) -> Desk:
    block: list[Any] = []

    async def begin() -> None:
        block.append(conn.transaction())
        await block[-1].start()

    return Desk(conn, conn.execute, begin, lambda: block.pop().commit(), lambda: block.pop().rollback(), close)


@contextmanager
def asyncpg_connect(place: Place) -> Iterator[Callable[[], Any]]:
    import asyncpg

    yield lambda: asyncpg.connect(place.url)


@asynccontextmanager
async def asyncpg_autocommit(place: Place) -> AsyncIterator[Desk]:
    import asyncpg

    conn = await asyncpg.connect(place.url)
    async with closing(Desk(conn, conn.execute, commit=lambda: None, roll_back=lambda: None)) as desk:
        yield desk


@kind("asyncpg", "postgresql", True, autocommit=asyncpg_autocommit, connect=asyncpg_connect)
@asynccontextmanager
async def asyncpg_kind(place: Place) -> AsyncIterator[Desk]:
    import asyncpg

    class Named(asyncpg.Record):  # type: ignore[misc]
        pass

    async with closing(asyncpg_desk(await asyncpg.connect(place.url, record_class=Named))) as desk:
        yield desk


@kind("asyncpg, from its pool", "postgresql", True)
@asynccontextmanager
async def asyncpg_pool(place: Place) -> AsyncIterator[Desk]:
    import asyncpg

    async with asyncpg.create_pool(place.url, min_size=1, max_size=1) as pool:
        conn = await pool.acquire()
        async with closing(asyncpg_desk(conn, lambda: pool.release(conn))) as desk:
            yield desk


# -- PyMySQL and aiomysql


def pymysql_conn(place: Place, **options: Any) -> Any:
    import pymysql

    conn = pymysql.connect(**place.mysql, database=place.database, **options)
    if not place.returning:
        conn.server_version = "8.0.36"
    return conn


@contextmanager
def pymysql_connect(place: Place) -> Iterator[Callable[[], Any]]:
    yield lambda: pymysql_conn(place)


@asynccontextmanager
async def pymysql_autocommit(place: Place) -> AsyncIterator[Desk]:
    conn = pymysql_conn(place, autocommit=True)
    async with closing(Desk(conn, by_cursor(conn))) as desk:
        yield desk


@kind("pymysql", "mysql", autocommit=pymysql_autocommit, connect=pymysql_connect)
@asynccontextmanager
async def pymysql_kind(place: Place) -> AsyncIterator[Desk]:
    conn = pymysql_conn(place)
    async with closing(Desk(conn, by_cursor(conn))) as desk:
        yield desk


@kind("pymysql with DictCursor, FOUND_ROWS, latin1 and no backslash escapes, after begin()", "mysql")
@asynccontextmanager
async def pymysql_dict(place: Place) -> AsyncIterator[Desk]:
    import pymysql
    from pymysql.constants import CLIENT
    from pymysql.cursors import DictCursor

    conn = pymysql_conn(
        place,
        autocommit=True,
        cursorclass=DictCursor,
        client_flag=CLIENT.FOUND_ROWS,
        charset="latin1",
        sql_mode="NO_BACKSLASH_ESCAPES,ANSI_QUOTES,STRICT_ALL_TABLES",
    )
    assert isinstance(conn, pymysql.Connection)
    async with closing(Desk(conn, by_cursor(conn), begin=conn.begin)) as desk:
        yield desk
        assert conn.cursorclass is DictCursor


@kind("pymysql on a server without RETURNING", "mysql")
@asynccontextmanager
async def pymysql_mysql(place: Place) -> AsyncIterator[Desk]:
    conn = pymysql_conn(replace(place, returning=False))
    async with closing(Desk(conn, by_cursor(conn))) as desk:
        yield desk


@contextmanager
def aiomysql_connect(place: Place) -> Iterator[Callable[[], Any]]:
    import aiomysql  # type: ignore[import-untyped, unused-ignore]

    yield lambda: aiomysql.connect(**place.mysql, db=place.database)


def aiomysql_desk(conn: Any) -> Desk:
    async def run(sql: str) -> None:
        async with conn.cursor() as cursor:
            await cursor.execute(sql)

    return Desk(conn, run)


@asynccontextmanager
async def aiomysql_autocommit(place: Place) -> AsyncIterator[Desk]:
    import aiomysql

    async with closing(
        aiomysql_desk(await aiomysql.connect(**place.mysql, db=place.database, autocommit=True))
    ) as desk:
        yield desk


@kind("aiomysql", "mysql", True, autocommit=aiomysql_autocommit, connect=aiomysql_connect)
@asynccontextmanager
async def aiomysql_kind(place: Place) -> AsyncIterator[Desk]:
    import aiomysql

    conn = await aiomysql.connect(**place.mysql, db=place.database, cursorclass=aiomysql.DictCursor)
    async with closing(aiomysql_desk(conn)) as desk:
        yield desk


# -- SQLAlchemy


def sqlalchemy_kinds(driver: str, dialect: Dialect) -> None:
    from sqlalchemy import create_engine
    from sqlalchemy.orm import Session, scoped_session, sessionmaker

    def engine_on(place: Place, **options: Any) -> Any:
        return create_engine(place.sqlalchemy(driver), **options)

    def opened(make: Callable[[Any], Any], **options: Any) -> Any:
        @asynccontextmanager
        async def open_(place: Place) -> AsyncIterator[Desk]:
            engine = engine_on(place, **options)
            conn = make(engine)
            try:
                async with closing(Desk(conn, lambda sql: sqlalchemy_run(conn, sql))) as desk:
                    yield desk
            finally:
                engine.dispose()

        return open_

    def connecting(make: Callable[[Any], Any]) -> Any:
        @contextmanager
        def connect(place: Place) -> Iterator[Callable[[], Any]]:
            engine = engine_on(place)
            yield make(engine)
            engine.dispose()

        return connect

    KINDS.append(
        Kind(
            f"SQLAlchemy Session, {driver}",
            dialect,
            False,
            opened(Session),
            opened(Session, isolation_level="AUTOCOMMIT"),
            connecting(sessionmaker),
        )
    )
    KINDS.append(
        Kind(
            f"SQLAlchemy Connection, {driver}",
            dialect,
            False,
            opened(lambda engine: engine.connect()),
            opened(lambda engine: engine.connect(), isolation_level="AUTOCOMMIT"),
            connecting(lambda engine: engine.connect),
        )
    )
    if dialect == "sqlite":
        KINDS.append(
            Kind("SQLAlchemy scoped_session", dialect, False, opened(lambda e: scoped_session(sessionmaker(e))))
        )


def sqlalchemy_run(conn: Any, sql: str) -> Any:
    from sqlalchemy import text

    return conn.execute(text(sql))


def async_sqlalchemy_kinds(driver: str, dialect: Dialect) -> None:
    from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

    def engine_on(place: Place, **options: Any) -> Any:
        return create_async_engine(place.sqlalchemy(driver), **options)

    def opened(make: Callable[[Any], Any], **options: Any) -> Any:
        @asynccontextmanager
        async def open_(place: Place) -> AsyncIterator[Desk]:
            engine = engine_on(place, **options)
            conn = make(engine)
            if hasattr(conn, "start"):
                await conn.start()
            try:
                async with closing(Desk(conn, lambda sql: sqlalchemy_run(conn, sql))) as desk:
                    yield desk
            finally:
                await engine.dispose()

        return open_

    def connecting(make: Callable[[Any], Any]) -> Any:
        @asynccontextmanager
        async def connect(place: Place) -> AsyncIterator[Callable[[], Any]]:
            engine = engine_on(place)
            yield make(engine)
            await engine.dispose()

        return connect

    KINDS.append(
        Kind(
            f"SQLAlchemy AsyncSession, {driver}",
            dialect,
            True,
            opened(AsyncSession),
            opened(AsyncSession, isolation_level="AUTOCOMMIT"),
            connecting(async_sessionmaker),
        )
    )
    KINDS.append(
        Kind(
            f"SQLAlchemy AsyncConnection, {driver}",
            dialect,
            True,
            opened(lambda engine: engine.connect()),
            opened(lambda engine: engine.connect(), isolation_level="AUTOCOMMIT"),
            connecting(lambda engine: engine.connect),
        )
    )


sqlalchemy_kinds("pysqlite", "sqlite")
sqlalchemy_kinds("psycopg", "postgresql")
sqlalchemy_kinds("pymysql", "mysql")
async_sqlalchemy_kinds("aiosqlite", "sqlite")
async_sqlalchemy_kinds("psycopg", "postgresql")
async_sqlalchemy_kinds("asyncpg", "postgresql")
async_sqlalchemy_kinds("aiomysql", "mysql")


# -- Django


def django_connection(place: Place) -> Any:
    """Django's proxy of the connection to ``place``, under an alias that no other test has."""
    from django.conf import settings  # type: ignore[import-untyped, unused-ignore]

    if not settings.configured:
        settings.configure()
    import django  # type: ignore[import-untyped, unused-ignore]
    from django.apps import apps  # type: ignore[import-untyped, unused-ignore]
    from django.db import connections  # type: ignore[import-untyped, unused-ignore]
    from django.utils.connection import ConnectionProxy  # type: ignore[import-untyped, unused-ignore]

    if not apps.ready:
        django.setup()
    alias = f"at {place.url}"
    if alias not in connections.settings:
        told: dict[str, Any] = {"ENGINE": f"django.db.backends.{ENGINES[place.dialect]}", "NAME": place.path}
        if place.dialect != "sqlite":
            parts = urlsplit(place.url)
            told |= {"NAME": place.database, "HOST": parts.hostname, "PORT": parts.port, "USER": parts.username}
        if place.dialect == "mysql":
            import pymysql

            pymysql.version_info = (2, 2, 7, "final", 0)  # type: ignore[assignment]  # Django asks for mysqlclient
            pymysql.install_as_MySQLdb()
        else:
            told["OPTIONS"] = {"timeout": 10} if place.dialect == "sqlite" else {}
        connections.settings.update(connections.configure_settings({"default": {}, alias: told}))
    return ConnectionProxy(connections, alias)


ENGINES = {"sqlite": "sqlite3", "postgresql": "postgresql", "mysql": "mysql"}


def django_kind(dialect: Dialect) -> None:
    @asynccontextmanager
    async def opened(place: Place) -> AsyncIterator[Desk]:
        from django.db import transaction

        conn = django_connection(place)
        block: list[Any] = []

        def begin() -> None:
            block.append(transaction.atomic(using=conn.alias))
            block[-1].__enter__()

        def roll_back() -> None:
            error = RuntimeError("roll back")
            block.pop().__exit__(RuntimeError, error, None)

        desk = Desk(conn, by_cursor(conn), begin, lambda: block.pop().__exit__(None, None, None), roll_back)
        async with closing(desk):
            yield desk
            while block:
                roll_back()

    @asynccontextmanager
    async def autocommit(place: Place) -> AsyncIterator[Desk]:
        conn = django_connection(place)
        async with closing(Desk(conn, by_cursor(conn), commit=lambda: None, roll_back=lambda: None)) as desk:
            yield desk

    @contextmanager
    def connect(place: Place) -> Iterator[Callable[[], Any]]:
        conn = django_connection(place)
        yield lambda: conn
        conn.close()

    KINDS.append(Kind(f"Django, {ENGINES[dialect]}", dialect, False, opened, autocommit, connect))


django_kind("sqlite")
django_kind("postgresql")
django_kind("mysql")
