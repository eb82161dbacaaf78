"""sqlite3, aiosqlite, psycopg, asyncpg, PyMySQL and aiomysql."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any

from .base import CallerConnection, Place, by_cursor, closing, kind

# -- sqlite3 and aiosqlite


def sqlite(place: Place, **options: Any) -> Any:
    conn = sqlite3.connect(place.path, timeout=10, check_same_thread=False, **options)
    conn.execute("PRAGMA synchronous = FULL")
    return conn


@contextmanager
def sqlite_connect(place: Place) -> Iterator[Callable[[], Any]]:
    yield lambda: sqlite(place)


@asynccontextmanager
async def sqlite3_autocommit(place: Place) -> AsyncIterator[CallerConnection]:
    conn = sqlite(place, isolation_level=None)
    async with closing(CallerConnection(conn, conn.execute)) as caller:
        yield caller


@kind("sqlite3", "sqlite", autocommit=sqlite3_autocommit, connect=sqlite_connect)
@asynccontextmanager
async def sqlite3_legacy(place: Place) -> AsyncIterator[CallerConnection]:
    conn = sqlite(place)
    async with closing(CallerConnection(conn, conn.execute)) as caller:
        yield caller


def as_dict(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> dict[str, Any]:
    return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}


@kind("sqlite3 with a row factory, and texts as bytes", "sqlite")
@asynccontextmanager
async def sqlite3_dict(place: Place) -> AsyncIterator[CallerConnection]:
    conn = sqlite(place, isolation_level=None)
    conn.row_factory = as_dict
    conn.text_factory = bytes
    async with closing(CallerConnection(conn, conn.execute, begin=lambda: conn.execute("BEGIN IMMEDIATE"))) as caller:
        yield caller
        assert conn.row_factory is as_dict


@contextmanager
def aiosqlite_connect(place: Place) -> Iterator[Callable[[], Any]]:
    import aiosqlite

    yield lambda: aiosqlite.connect(place.path, timeout=10)


@asynccontextmanager
async def aiosqlite_autocommit(place: Place) -> AsyncIterator[CallerConnection]:
    import aiosqlite

    conn = await aiosqlite.connect(place.path, isolation_level=None)
    async with closing(CallerConnection(conn, conn.execute)) as caller:
        yield caller


@kind("aiosqlite", "sqlite", True, autocommit=aiosqlite_autocommit, connect=aiosqlite_connect)
@asynccontextmanager
async def aiosqlite_kind(place: Place) -> AsyncIterator[CallerConnection]:
    import aiosqlite

    conn = await aiosqlite.connect(place.path, timeout=10)
    conn.row_factory = as_dict  # type: ignore[assignment]
    async with closing(CallerConnection(conn, conn.execute)) as caller:
        yield caller


# -- psycopg and asyncpg


@contextmanager
def psycopg_connect(place: Place) -> Iterator[Callable[[], Any]]:
    from psycopg_pool import ConnectionPool

    with ConnectionPool(place.url, min_size=1, max_size=4, timeout=2) as pool:
        yield pool.connection


@asynccontextmanager
async def psycopg_autocommit(place: Place) -> AsyncIterator[CallerConnection]:
    import psycopg

    conn = psycopg.connect(place.url, autocommit=True)
    async with closing(CallerConnection(conn, conn.execute)) as caller:
        yield caller


@kind("psycopg", "postgresql", autocommit=psycopg_autocommit, connect=psycopg_connect)
@asynccontextmanager
async def psycopg_kind(place: Place) -> AsyncIterator[CallerConnection]:
    import psycopg

    conn = psycopg.connect(place.url)
    async with closing(CallerConnection(conn, conn.execute)) as caller:
        yield caller


@kind("psycopg with dict_row, client cursors and autocommit, in conn.transaction()", "postgresql")
@asynccontextmanager
async def psycopg_dict(place: Place) -> AsyncIterator[CallerConnection]:
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

    async with closing(CallerConnection(conn, conn.execute, begin, commit, roll_back)) as caller:
        yield caller
        assert conn.row_factory is dict_row
        assert conn.cursor_factory is psycopg.ClientCursor


@kind("psycopg in a pipeline", "postgresql")
@asynccontextmanager
async def psycopg_pipeline(place: Place) -> AsyncIterator[CallerConnection]:
    import psycopg

    conn = psycopg.connect(place.url)
    async with closing(CallerConnection(conn, conn.execute)) as caller:
        pipeline = conn.pipeline()
        pipeline.__enter__()
        yield caller
        if not conn.closed:
            pipeline.__exit__(None, None, None)


@contextmanager
def psycopg_async_connect(place: Place) -> Iterator[Callable[[], Any]]:
    import psycopg

    yield lambda: psycopg.AsyncConnection.connect(place.url)


@asynccontextmanager
async def psycopg_async_autocommit(place: Place) -> AsyncIterator[CallerConnection]:
    import psycopg

    conn = await psycopg.AsyncConnection.connect(place.url, autocommit=True)
    async with closing(CallerConnection(conn, conn.execute)) as caller:
        yield caller


@kind("psycopg, async", "postgresql", True, autocommit=psycopg_async_autocommit, connect=psycopg_async_connect)
@asynccontextmanager
async def psycopg_async(place: Place) -> AsyncIterator[CallerConnection]:
    import psycopg
    from psycopg.rows import dict_row

    conn: Any = await psycopg.AsyncConnection.connect(place.url, row_factory=dict_row)  # type: ignore[arg-type]
    async with closing(CallerConnection(conn, conn.execute)) as caller:
        yield caller


def asyncpg_caller(conn: Any, close: Callable[[], Any] | None = None) -> CallerConnection:
    block: list[Any] = []

    async def begin() -> None:
        block.append(conn.transaction())
        await block[-1].start()

    return CallerConnection(
        conn, conn.execute, begin, lambda: block.pop().commit(), lambda: block.pop().rollback(), close
    )


@contextmanager
def asyncpg_connect(place: Place) -> Iterator[Callable[[], Any]]:
    import asyncpg

    yield lambda: asyncpg.connect(place.url)


@asynccontextmanager
async def asyncpg_autocommit(place: Place) -> AsyncIterator[CallerConnection]:
    import asyncpg

    conn = await asyncpg.connect(place.url)
    async with closing(CallerConnection(conn, conn.execute, commit=lambda: None, roll_back=lambda: None)) as caller:
        yield caller


@kind("asyncpg", "postgresql", True, autocommit=asyncpg_autocommit, connect=asyncpg_connect)
@asynccontextmanager
async def asyncpg_kind(place: Place) -> AsyncIterator[CallerConnection]:
    import asyncpg

    class Named(asyncpg.Record):  # type: ignore[misc]
        pass

    async with closing(asyncpg_caller(await asyncpg.connect(place.url, record_class=Named))) as caller:
        yield caller


@kind("asyncpg, from its pool", "postgresql", True)
@asynccontextmanager
async def asyncpg_pool(place: Place) -> AsyncIterator[CallerConnection]:
    import asyncpg

    async with asyncpg.create_pool(place.url, min_size=1, max_size=1) as pool:
        conn = await pool.acquire()
        async with closing(asyncpg_caller(conn, lambda: pool.release(conn))) as caller:
            yield caller


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
async def pymysql_autocommit(place: Place) -> AsyncIterator[CallerConnection]:
    conn = pymysql_conn(place, autocommit=True)
    async with closing(CallerConnection(conn, by_cursor(conn))) as caller:
        yield caller


@kind("pymysql", "mysql", autocommit=pymysql_autocommit, connect=pymysql_connect)
@asynccontextmanager
async def pymysql_kind(place: Place) -> AsyncIterator[CallerConnection]:
    conn = pymysql_conn(place)
    async with closing(CallerConnection(conn, by_cursor(conn))) as caller:
        yield caller


@kind("pymysql with DictCursor, FOUND_ROWS, latin1 and no backslash escapes, after begin()", "mysql")
@asynccontextmanager
async def pymysql_dict(place: Place) -> AsyncIterator[CallerConnection]:
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
    async with closing(CallerConnection(conn, by_cursor(conn), begin=conn.begin)) as caller:
        yield caller
        assert conn.cursorclass is DictCursor


@kind("pymysql on a server without RETURNING", "mysql")
@asynccontextmanager
async def pymysql_mysql(place: Place) -> AsyncIterator[CallerConnection]:
    conn = pymysql_conn(replace(place, returning=False))
    async with closing(CallerConnection(conn, by_cursor(conn))) as caller:
        yield caller


@contextmanager
def aiomysql_connect(place: Place) -> Iterator[Callable[[], Any]]:
    import aiomysql  # type: ignore[import-untyped, unused-ignore]

    yield lambda: aiomysql.connect(**place.mysql, db=place.database)


def aiomysql_caller(conn: Any) -> CallerConnection:
    async def run(sql: str) -> None:
        async with conn.cursor() as cursor:
            await cursor.execute(sql)

    return CallerConnection(conn, run)


@asynccontextmanager
async def aiomysql_autocommit(place: Place) -> AsyncIterator[CallerConnection]:
    import aiomysql

    async with closing(
        aiomysql_caller(await aiomysql.connect(**place.mysql, db=place.database, autocommit=True))
    ) as caller:
        yield caller


@kind("aiomysql", "mysql", True, autocommit=aiomysql_autocommit, connect=aiomysql_connect)
@asynccontextmanager
async def aiomysql_kind(place: Place) -> AsyncIterator[CallerConnection]:
    import aiomysql

    conn = await aiomysql.connect(**place.mysql, db=place.database, cursorclass=aiomysql.DictCursor)
    async with closing(aiomysql_caller(conn)) as caller:
        yield caller
