"""SQLAlchemy and Django."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import urlsplit

from effectonce.contracts import Dialect

from .base import KINDS, CallerConnection, Kind, Place, by_cursor, closing, sqlalchemy_run

# -- SQLAlchemy


def sqlalchemy_kinds(driver: str, dialect: Dialect) -> None:
    from sqlalchemy import create_engine
    from sqlalchemy.orm import Session, scoped_session, sessionmaker

    def engine_on(place: Place, **options: Any) -> Any:
        return create_engine(place.sqlalchemy(driver), **options)

    def opened(make: Callable[[Any], Any], **options: Any) -> Any:
        @asynccontextmanager
        async def open_(place: Place) -> AsyncIterator[CallerConnection]:
            engine = engine_on(place, **options)
            conn = make(engine)
            try:
                async with closing(CallerConnection(conn, lambda sql: sqlalchemy_run(conn, sql))) as caller:
                    yield caller
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


def async_sqlalchemy_kinds(driver: str, dialect: Dialect) -> None:
    from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

    def engine_on(place: Place, **options: Any) -> Any:
        return create_async_engine(place.sqlalchemy(driver), **options)

    def opened(make: Callable[[Any], Any], **options: Any) -> Any:
        @asynccontextmanager
        async def open_(place: Place) -> AsyncIterator[CallerConnection]:
            engine = engine_on(place, **options)
            conn = make(engine)
            if hasattr(conn, "start"):
                await conn.start()
            try:
                async with closing(CallerConnection(conn, lambda sql: sqlalchemy_run(conn, sql))) as caller:
                    yield caller
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
        options: dict[str, Any] = {"ENGINE": f"django.db.backends.{ENGINES[place.dialect]}", "NAME": place.path}
        if place.dialect != "sqlite":
            parts = urlsplit(place.url)
            options |= {"NAME": place.database, "HOST": parts.hostname, "PORT": parts.port, "USER": parts.username}
        if place.dialect == "mysql":
            import pymysql

            pymysql.version_info = (2, 2, 7, "final", 0)  # type: ignore[assignment]  # Django asks for mysqlclient
            pymysql.install_as_MySQLdb()
        else:
            options["OPTIONS"] = {"timeout": 10} if place.dialect == "sqlite" else {}
        connections.settings.update(connections.configure_settings({"default": {}, alias: options}))
    return ConnectionProxy(connections, alias)


ENGINES = {"sqlite": "sqlite3", "postgresql": "postgresql", "mysql": "mysql"}


def django_kind(dialect: Dialect) -> None:
    @asynccontextmanager
    async def opened(place: Place) -> AsyncIterator[CallerConnection]:
        from django.db import transaction

        conn = django_connection(place)
        block: list[Any] = []

        def begin() -> None:
            block.append(transaction.atomic(using=conn.alias))
            block[-1].__enter__()

        def roll_back() -> None:
            error = RuntimeError("roll back")
            block.pop().__exit__(RuntimeError, error, None)

        caller = CallerConnection(
            conn, by_cursor(conn), begin, lambda: block.pop().__exit__(None, None, None), roll_back
        )
        async with closing(caller):
            yield caller
            while block:
                roll_back()

    @asynccontextmanager
    async def autocommit(place: Place) -> AsyncIterator[CallerConnection]:
        conn = django_connection(place)
        async with closing(
            CallerConnection(conn, by_cursor(conn), commit=lambda: None, roll_back=lambda: None)
        ) as caller:
            yield caller

    @contextmanager
    def connect(place: Place) -> Iterator[Callable[[], Any]]:
        conn = django_connection(place)
        yield lambda: conn
        conn.close()

    KINDS.append(Kind(f"Django, {ENGINES[dialect]}", dialect, False, opened, autocommit, connect))


django_kind("sqlite")
django_kind("postgresql")
django_kind("mysql")
