"""Transactions that end before their owner ends them, or that are somebody else's: nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session, scoped_session, sessionmaker

import effectonce as eo
from tests.inbox.conftest import Shop
from tests.inbox.kinds import Place, django_connection, pymysql_conn, run_sync, sqlite
from tests.inbox.test_handler import MUCH, bump, counted, rival
from tests.inbox.test_inputs import opened
from tests.inbox.test_orms import DRIVERS
from tests.inbox.test_waiting import until_waiting

# -- by the handler


async def test_a_handler_that_rolls_back_and_goes_on_is_not_done(shop: Shop) -> None:
    """Else its effect would be committed without the row, with every delivery once more."""

    @shop.inbox.handler(connect=lambda: opened(shop.place), retries=1, backoff="1ms")
    def handle(conn: Any, key: str) -> None:
        conn.rollback()
        run_sync(conn, shop.effect("paid"))

    for _ in range(2):
        with pytest.raises(eo.TransactionConflict, match="rolled back while the handler ran"):
            handle("k")
    assert shop.rows == shop.effects == []


async def test_a_handler_that_rolls_back_and_does_nothing_more_is_not_done(shop: Shop) -> None:
    @shop.inbox.handler(connect=lambda: opened(shop.place), retries=0)
    def handle(conn: Any, key: str) -> None:
        run_sync(conn, shop.effect("paid"))
        conn.rollback()

    with pytest.raises(eo.TransactionConflict, match="rolled back while the handler ran"):
        handle("k")
    assert shop.rows == shop.effects == []


async def test_a_session_that_rolls_back_and_goes_on_is_not_done(shop: Shop) -> None:
    engine = create_engine(shop.place.sqlalchemy(DRIVERS[shop.place.dialect][0]))

    @shop.inbox.handler(connect=sessionmaker(engine), retries=0, allow_unsafe=True)
    def handle(session: Session, key: str) -> None:
        with suppress(Exception):
            session.execute(text("INSERT INTO payments (id, amount) VALUES (1, NULL)"))
        session.rollback()
        session.execute(text(shop.effect("paid")))

    with pytest.raises(eo.TransactionConflict, match="rolled back while the handler ran"):
        handle("k")
    assert shop.rows == shop.effects == []
    engine.dispose()


async def test_a_handler_that_commits_and_then_fails_runs_again(shop: Shop) -> None:
    """The row was committed with the first half: the second would be lost."""
    runs: list[None] = []

    @shop.inbox.handler(connect=lambda: opened(shop.place))
    def handle(conn: Any, key: str) -> int:
        runs.append(None)
        if len(runs) == 1:
            run_sync(conn, shop.effect("half"))
            conn.commit()
            run_sync(conn, shop.effect("undone"))
            raise RuntimeError("no")
        run_sync(conn, shop.effect("whole"))
        return len(runs)

    with pytest.raises(eo.ConfigurationError, match="has ended the transaction it runs in") as caught:
        handle("k")
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert (shop.rows, shop.effects) == ([], ["half"])
    assert handle("k") == 2
    assert (shop.rows, shop.effects) == (["k"], ["half", "whole"])


async def test_a_handler_that_commits_and_goes_on_is_told(shop: Shop) -> None:
    @shop.inbox.handler(connect=lambda: opened(shop.place))
    def handle(conn: Any, key: str) -> None:
        conn.commit()
        run_sync(conn, shop.effect("after"))

    with pytest.raises(eo.ConfigurationError, match="will run again from the beginning"):
        handle("k")
    assert shop.rows == shop.effects == []


async def test_a_handler_that_commits_at_its_end_is_told_and_not_repeated(shop: Shop) -> None:
    @shop.inbox.handler(connect=lambda: opened(shop.place))
    def handle(conn: Any, key: str) -> int:
        run_sync(conn, shop.effect("paid"))
        conn.commit()
        return 7

    with pytest.raises(eo.ConfigurationError, match="is recorded as handled"):
        handle("k")
    assert handle("k") == 7
    assert (shop.rows, shop.effects) == (["k"], ["paid"])


@pytest.mark.parametrize("how", ["with conn", "executescript"])
async def test_what_commits_behind_the_back_of_sqlite3s_users(sqlite_place: Place, unique_name: str, how: str) -> None:
    shop = Shop(sqlite_place, unique_name)
    fails = [True]

    @shop.inbox.handler(connect=lambda: sqlite(sqlite_place))
    def handle(conn: sqlite3.Connection, key: str) -> None:
        if not fails:
            return
        fails.pop()
        if how == "with conn":
            with conn:
                conn.execute(shop.effect("half"))
            raise RuntimeError("no")
        conn.executescript(shop.effect("half") + "; INSERT INTO nowhere VALUES (1)")

    with pytest.raises(eo.ConfigurationError, match="has ended the transaction"):
        handle("k")
    assert shop.rows == []
    handle("k")
    assert shop.rows == ["k"]


async def test_a_row_that_another_delivery_has_made_meanwhile_is_left_alone(shop: Shop) -> None:
    """A delete by the key alone would delete the record of what that one has done."""

    @shop.inbox.handler(connect=lambda: opened(shop.place))
    def handle(conn: Any, key: str) -> None:
        conn.rollback()
        other = opened(shop.place)
        assert shop.inbox.first(other, key)
        run_sync(other, shop.effect("by the other"))
        other.commit()
        other.close()
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        handle("k")
    assert (shop.rows, shop.effects) == (["k"], ["by the other"])


# -- by the database


@contextmanager
def deadlocks(shop: Shop) -> Iterator[Any]:
    """A function that makes a connection the victim of a deadlock on MariaDB: its whole transaction is rolled back."""
    counted(shop)
    with rival(shop.place) as other, ThreadPoolExecutor(1) as pool:

        def collide(ours: Any) -> None:
            run_sync(ours, bump(shop, 1))
            run_sync(other, f"INSERT INTO {shop.scope} {MUCH}")
            run_sync(other, bump(shop, 2))
            waits = pool.submit(run_sync, other, bump(shop, 1))
            waits.add_done_callback(lambda _: other.rollback())
            until_waiting(shop.place, waits)
            run_sync(ours, bump(shop, 2))

        yield collide


async def test_a_deadlock_that_the_handler_hid_starts_it_again(mysql_place: Place, unique_name: str) -> None:
    shop = Shop(mysql_place, unique_name)
    runs: list[None] = []
    with deadlocks(shop) as collide:

        @shop.inbox.handler(connect=lambda: opened(mysql_place), backoff="1ms")
        def handle(conn: Any, key: str) -> int:
            runs.append(None)
            if len(runs) == 1:
                with pytest.raises(Exception, match="Deadlock"):
                    collide(conn)
            run_sync(conn, shop.effect(f"run {len(runs)}"))
            return len(runs)

        assert handle("k") == handle("k") == 2
    assert (shop.rows, shop.effects) == (["k"], ["run 2"])


async def test_a_call_says_that_a_deadlock_took_the_whole_transaction(mysql_place: Place, unique_name: str) -> None:
    """Who goes on would commit without the messages before."""
    shop = Shop(mysql_place, unique_name)
    conn = opened(mysql_place)
    with deadlocks(shop) as collide:
        assert shop.inbox.call(conn, "before", lambda conn, key: run_sync(conn, shop.effect(key)) and None)
        with pytest.raises(eo.TransactionConflict, match="ended your whole transaction") as caught:
            shop.inbox.call(conn, "k", lambda conn, key: collide(conn))
    assert "Deadlock" in str(caught.value.__cause__)
    conn.rollback()
    conn.close()
    assert shop.rows == shop.effects == []


async def test_a_call_says_that_sqlite_rolled_all_of_it_back(sqlite_place: Place, unique_name: str) -> None:
    shop = Shop(sqlite_place, unique_name)
    sqlite_place.query(f"CREATE TABLE {shop.scope} (x INT UNIQUE ON CONFLICT ROLLBACK)")
    sqlite_place.query(f"INSERT INTO {shop.scope} VALUES (1)")
    conn = opened(sqlite_place)
    assert shop.inbox.first(conn, "before")
    with pytest.raises(eo.TransactionConflict, match="ended your whole transaction"):
        shop.inbox.call(conn, "k", lambda conn, key: conn.execute(f"INSERT INTO {shop.scope} VALUES (1)") and None)
    conn.close()


# -- Django without autocommit


async def test_a_handler_on_django_without_autocommit_is_refused(place: Place, unique_name: str) -> None:
    """The end of `atomic` commits nothing there."""
    shop = Shop(place, unique_name)
    connection = django_connection(place)
    connection.set_autocommit(False)
    try:

        @shop.inbox.handler(connect=lambda: connection, allow_unsafe=True)
        def handle(conn: Any, key: str) -> None:
            conn.cursor().execute(shop.effect("paid"))

        with pytest.raises(eo.ConfigurationError, match="autocommit is off"):
            handle("k")
    finally:
        connection.rollback()
        connection.set_autocommit(True)
        connection.close()
    assert shop.rows == shop.effects == []


async def test_a_call_on_django_without_autocommit_is_committed_by_its_owner(place: Place, unique_name: str) -> None:
    shop = Shop(place, unique_name)
    connection = django_connection(place)
    connection.set_autocommit(False)
    try:
        shop.inbox.call(connection, "undone", lambda conn, key: None)
        connection.rollback()
        shop.inbox.call(connection, "k", lambda conn, key: None)
        assert shop.rows == []
        connection.commit()
    finally:
        connection.set_autocommit(True)
        connection.close()
    assert shop.rows == ["k"]


# -- cancelled


@pytest.mark.parametrize("what", ["first", "first_many", "call"])
async def test_aiosqlite_undoes_what_its_thread_did_after_the_cancel(
    sqlite_place: Place, unique_name: str, what: str
) -> None:
    """F16: the thread continues the statement; a caller who commits would have it recorded, and not done."""
    import aiosqlite

    shop = Shop(sqlite_place, unique_name)
    asked = asyncio.Event()

    async def nothing(conn: Any, key: str) -> None: ...

    async with aiosqlite.connect(sqlite_place.path, timeout=10) as conn:
        other = sqlite(sqlite_place, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        loop = asyncio.get_running_loop()

        def seen(sql: str) -> None:
            if sql.startswith("INSERT"):
                loop.call_soon_threadsafe(asked.set)

        await conn.set_trace_callback(seen)

        async def handle() -> None:
            if what == "first":
                await shop.inbox.first(conn, "k")
            elif what == "first_many":
                await shop.inbox.first_many(conn, ["k", "l"])
            else:
                await shop.inbox.call(conn, "k", nothing)

        task = asyncio.create_task(handle())
        await asyncio.wait_for(asked.wait(), 60)
        task.cancel()
        await asyncio.sleep(0)
        other.execute("COMMIT")
        other.close()
        with pytest.raises(asyncio.CancelledError):
            await task
        await conn.execute(shop.effect("other work"))
        await conn.commit()
    assert (shop.rows, shop.effects) == ([], ["other work"])


async def test_a_second_cancel_leaks_no_connection(postgres_place: Place, unique_name: str) -> None:
    shop = Shop(postgres_place, unique_name)
    given: list[str] = []
    started = asyncio.Event()
    undoing = asyncio.Event()

    import psycopg

    class Slow(psycopg.AsyncConnection[Any]):
        async def rollback(self) -> None:
            undoing.set()
            await asyncio.sleep(60)

    @asynccontextmanager
    async def connect() -> Any:
        conn = await Slow.connect(postgres_place.url)
        try:
            yield conn
        finally:
            given.append("back")
            await conn.close()

    @shop.inbox.handler(connect=connect)
    async def handle(conn: Any, key: str) -> None:
        started.set()
        await asyncio.sleep(60)

    task = asyncio.create_task(handle("k"))
    await asyncio.wait_for(started.wait(), 60)
    task.cancel()
    await asyncio.wait_for(undoing.wait(), 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert given == ["back"]


# -- somebody else's transaction


async def test_a_session_with_a_transaction_open_is_refused_and_left_as_it_was(shop: Shop) -> None:
    engine = create_engine(shop.place.sqlalchemy(DRIVERS[shop.place.dialect][0]))
    sessions = scoped_session(sessionmaker(engine))
    sessions.execute(text(shop.effect("theirs")))

    @shop.inbox.handler(connect=sessions, allow_unsafe=True)
    def handle(session: Any, key: str) -> None: ...

    with pytest.raises(eo.ConfigurationError, match="has a transaction open"):
        handle("k")
    sessions.commit()
    sessions.remove()
    engine.dispose()
    assert (shop.rows, shop.effects) == ([], ["theirs"])


async def test_a_manager_that_commits_what_it_gave_is_told_of_the_refusal(shop: Shop) -> None:
    conn = opened(shop.place)
    run_sync(conn, shop.effect("half"))

    @contextmanager
    def unit_of_work() -> Iterator[Any]:
        try:
            yield conn
        except BaseException:
            conn.rollback()
            raise
        else:
            conn.commit()

    @shop.inbox.handler(connect=unit_of_work, allow_unsafe=True)
    def handle(conn: Any, key: str) -> None: ...

    with pytest.raises(eo.ConfigurationError, match="has a transaction open"):
        handle("k")
    conn.close()
    assert shop.rows == shop.effects == []


async def test_a_session_on_a_connection_with_a_transaction_open_is_refused(shop: Shop) -> None:
    """Its commit leaves the end to the owner of the connection."""
    engine = create_engine(shop.place.sqlalchemy(DRIVERS[shop.place.dialect][0]))
    with engine.connect() as conn:
        conn.begin()

        @shop.inbox.handler(connect=lambda: Session(bind=conn), allow_unsafe=True)
        def handle(session: Session, key: str) -> None:
            session.execute(text(shop.effect("paid")))

        with pytest.raises(eo.ConfigurationError, match="has a transaction open"):
            handle("k")
        conn.rollback()
    engine.dispose()
    assert shop.rows == shop.effects == []


# -- a unique key of one's own that takes two keys for one


async def test_a_collation_that_merges_keys_is_refused(mysql_place: Place, unique_name: str) -> None:
    conn = pymysql_conn(mysql_place)
    payments = eo.Inbox(scope=unique_name).on_table("payments", column="idempotency_key")
    assert payments.insert(conn, f"{unique_name}:a", {"amount": 1}).was_inserted
    assert not payments.insert(conn, f"{unique_name}:a", {"amount": 1}).was_inserted
    with pytest.raises(eo.ConfigurationError, match="COLLATE utf8mb4_bin"):
        payments.insert(conn, f"{unique_name}:A", {"amount": 2})
    conn.rollback()
    conn.close()


async def test_a_number_is_not_taken_for_a_text_that_begins_with_it(mysql_place: Place, unique_name: str) -> None:
    conn = pymysql_conn(mysql_place)
    payments = eo.Inbox(scope=unique_name).on_table("payments", column="idempotency_key")
    payments.insert(conn, "07x", {"amount": 70})
    assert payments.insert(conn, 7, {"amount": 7}).was_inserted
    again = payments.insert(conn, 7, {"amount": 7})
    assert (again.was_inserted, again.row["amount"]) == (False, 7)
    conn.rollback()
    conn.close()


# -- asyncpg, and a session of SQLAlchemy's that is one per task


async def test_an_answer_that_is_awaited_after_the_transaction_is_refused(
    postgres_place: Place, unique_name: str
) -> None:
    import asyncpg

    shop = Shop(postgres_place, unique_name)
    conn = await asyncpg.connect(postgres_place.url)
    async with conn.transaction():
        late = [shop.inbox.first(conn, "k"), shop.inbox.first_many(conn, ["k"]), shop.inbox.call(conn, "k", print)]
    for answer in late:
        with pytest.raises(eo.NotInTransaction):
            await answer
    await conn.close()
    assert shop.rows == []


async def test_a_handler_on_asyncpg_may_use_its_transactions(postgres_place: Place, unique_name: str) -> None:
    import asyncpg

    shop = Shop(postgres_place, unique_name)
    conn = await asyncpg.connect(postgres_place.url)

    @asynccontextmanager
    async def connect() -> Any:
        yield conn

    @shop.inbox.handler(connect=connect, retries=0)
    async def handle(conn: Any, key: str) -> int:
        with suppress(ZeroDivisionError):
            async with conn.transaction():
                await conn.execute(shop.effect("undone"))
                raise ZeroDivisionError
        async with conn.transaction():
            await conn.execute(shop.effect(key))
        if key == "fails":
            raise RuntimeError("no")
        if key == "commits":
            await conn.execute("COMMIT")
        return 1

    with pytest.raises(RuntimeError):
        await handle("fails")
    with pytest.raises(eo.ConfigurationError, match="is recorded as handled"):
        await handle("commits")
    assert await handle("k") == await handle("k") == await handle("commits") == 1
    await conn.close()
    assert shop.rows == shop.effects == ["commits", "k"]


async def test_an_async_scoped_session_is_the_session_of_its_task(shop: Shop) -> None:
    from sqlalchemy.ext.asyncio import async_scoped_session, async_sessionmaker, create_async_engine

    engine = create_async_engine(shop.place.sqlalchemy(DRIVERS[shop.place.dialect][1]))
    sessions = async_scoped_session(async_sessionmaker(engine), asyncio.current_task)
    assert await shop.inbox.first(sessions, "k")
    assert not await shop.inbox.first(sessions, "k")
    await sessions.commit()
    await sessions.remove()
    await engine.dispose()
    assert shop.rows == ["k"]
