"""What is cut off in the middle: a cancelled `first`, a turn that never came, a transaction that is gone."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import psycopg
import pymysql
import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import effectonce as eo
from effectonce.contracts import ConnectionLost
from effectonce.values.awaitables import maybe_await
from tests.inbox.conftest import Shop, place_of
from tests.inbox.kinds import KINDS, Kind, Place, run_sync
from tests.inbox.test_ended import deadlocks
from tests.inbox.test_handler import handler, paid
from tests.inbox.test_inputs import opened
from tests.inbox.test_waiting import IMPATIENT

# Not SQLAlchemy on aiosqlite: it drops such a connection, whose thread goes on, and holds the file's lock, for a while.
CANCELLED = ("psycopg, async", "asyncpg", "aiosqlite", "aiomysql", "SQLAlchemy AsyncSession, asyncpg")


@pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.name) for kind in KINDS if kind.name in CANCELLED])
async def test_a_cancelled_first_records_nothing_even_if_the_caller_goes_on_and_commits(
    request: pytest.FixtureRequest, kind: Kind, unique_name: str
) -> None:
    """The answer is there when the task is cancelled: it never gets to see it."""
    shop = Shop(place_of(request, kind.dialect), unique_name, kind)
    answered: set[str] = set()

    async def ask(conn: Any, key: str) -> None:
        if await shop.inbox.first(conn, key):
            answered.add(key)

    for step in range(8):
        caller = await shop.caller()
        asking = asyncio.create_task(ask(caller.conn, f"k{step}"))
        asyncio.get_running_loop().call_later(step * 0.0005, asking.cancel)
        with suppress(asyncio.CancelledError):
            await asking
        with suppress(Exception):
            await caller.commit()
        with suppress(Exception):
            await caller.roll_back()
        assert set(shop.rows) <= answered
    await shop.stack.aclose()


async def test_a_turn_that_never_came_was_no_attempt(request: pytest.FixtureRequest, unique_name: str) -> None:
    """Each delivery beside a slow one would use up one of the message's attempts."""
    for dialect in ("postgresql", "mysql"):
        place: Place = place_of(request, dialect)
        shop = Shop(place, unique_name)

        def impatient(place: Place = place) -> Any:
            conn = opened(place)
            run_sync(conn, IMPATIENT[place.dialect])
            conn.commit()
            return conn

        handle = handler(shop, impatient, max_attempts=1)
        holder = opened(place)
        assert shop.inbox.first(holder, paid())
        for _ in range(2):
            with pytest.raises(eo.InProgress):
                handle(paid())
        assert not shop.attempts
        holder.rollback()
        holder.close()
        assert handle(paid()) == 1
        assert shop.attempts is None


async def test_a_transaction_that_a_deadlock_has_ended_is_not_taken_for_open(
    mysql_place: Place, unique_name: str
) -> None:
    """An error carries no status, so PyMySQL still believes in the transaction; with autocommit, the record would be
    committed by itself."""
    shop = Shop(mysql_place, unique_name)
    conn = pymysql.connect(**mysql_place.mysql, database=mysql_place.database, autocommit=True)
    with deadlocks(shop) as collide:
        conn.begin()
        with pytest.raises(Exception, match="Deadlock"):
            collide(conn)
        with pytest.raises(eo.NotInTransaction):
            shop.inbox.first(conn, "k")
        conn.begin()
        assert shop.inbox.first(conn, "k")
        conn.rollback()
    conn.close()
    assert shop.rows == []


async def test_a_lost_connection_is_known_whatever_the_words(postgres_place: Place, unique_name: str) -> None:
    """libpq speaks the language of its environment."""
    from effectonce.sessions import session_on

    conn = psycopg.connect(postgres_place.url)
    foreign = psycopg.OperationalError("Server beendete die Verbindung unerwartet")
    assert session_on(conn).database_failure(foreign) is None
    conn.close()
    assert isinstance(session_on(conn).database_failure(foreign), ConnectionLost)
    assert session_on(conn).database_failure(psycopg.errors.UniqueViolation("twice")) is None


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "cut_orders"
    id: Mapped[int] = mapped_column(primary_key=True)


async def test_a_session_with_two_databases_has_to_say_which(sqlite_place: Place, unique_name: str) -> None:
    """Its transaction is two, of which one may be committed and the other not."""
    shop = Shop(sqlite_place, unique_name)
    one, two = create_engine(sqlite_place.sqlalchemy("pysqlite")), create_engine("sqlite://")
    for session in (Session(one, binds={Order: two}), Session(binds={Order: one})):
        with session, pytest.raises(eo.ConfigurationError, match=r"session\.connection"):
            shop.inbox.first(session, "k")
    with Session(one, binds={Order: one}) as session:
        assert shop.inbox.first(session, "k")
        session.commit()
    with Session(binds={Order: one}) as session:
        assert not shop.inbox.first(session.connection(bind_arguments={"mapper": Order}), "k")
    three, four = (create_async_engine(url) for url in (sqlite_place.sqlalchemy("aiosqlite"), "sqlite+aiosqlite://"))
    async with AsyncSession(three, binds={Order: four}) as several:
        with pytest.raises(eo.ConfigurationError, match=r"session\.connection"):
            await maybe_await(shop.inbox.first(several, "k"))
    for engine in (one, two):
        engine.dispose()
    assert shop.rows == ["k"]
