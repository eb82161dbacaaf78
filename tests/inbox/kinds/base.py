"""Every kind of connection that the inbox and the outbox join, behind one interface for the tests.

A `CallerConnection` is one open connection with the driver's own ways of beginning, running, committing and rolling
back; nothing of effectonce is used for that. Of sync kinds its coroutines never suspend, so a test is written once.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from effectonce.contracts import Dialect
from effectonce.values.awaitables import maybe_await

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


class CallerConnection:
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
        await maybe_await(self._run(sql))

    async def begin(self) -> None:
        if self._begin is not None:
            await maybe_await(self._begin())

    async def commit(self) -> None:
        await maybe_await(self._commit())

    async def roll_back(self) -> None:
        await maybe_await(self._roll_back())

    async def close(self) -> None:
        await maybe_await(self._close())


@dataclass(frozen=True)
class Kind:
    name: str
    dialect: Dialect
    is_async: bool
    #: A context manager around a caller on a place.
    open: Callable[[Place], Any] = field(repr=False)
    #: One whose statements commit themselves.
    autocommit: Callable[[Place], Any] | None = field(default=None, repr=False)
    #: What `Inbox.handler(connect=…)` is given, inside a context manager that ends it.
    connect: Callable[[Place], Any] | None = field(default=None, repr=False)


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
async def closing(caller: CallerConnection) -> AsyncIterator[CallerConnection]:
    try:
        yield caller
    finally:
        try:
            await caller.close()
        except Exception:  # the test has closed it
            pass


def sqlalchemy_run(conn: Any, sql: str) -> Any:
    from sqlalchemy import text

    return conn.execute(text(sql))
