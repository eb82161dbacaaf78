"""The handler that owns its transaction: what it repeats, what it never repeats, and what it answers after a cut."""

from __future__ import annotations

import asyncio
import inspect
import sqlite3
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest

import effectonce as eo
from effectonce.core.run_sync import run_sync as run_coroutine
from effectonce.sessions import session_on
from effectonce.sessions.psycopg import PsycopgSession
from effectonce.values.awaitables import maybe_await
from tests.harness.proxy import FaultProxy
from tests.inbox.conftest import Shop, place_of
from tests.inbox.kinds import KINDS, Kind, Place, run, run_sync
from tests.inbox.test_inputs import opened
from tests.inbox.test_waiting import until_waiting

pytestmark = pytest.mark.quick_on("sqlite3", "psycopg", "psycopg, async", "asyncpg", "pymysql", "aiomysql")

FAST = {"backoff": "1ms", "max_backoff": "5ms"}


def paid(key: str = "order-1") -> eo.Message[int]:
    return eo.Message(data=4200, key=key)


def handler(shop: Shop, connect: Any, body: Callable[[int], Any] = lambda number: None, **options: Any) -> Any:
    """Has the effect ``run n``, then does ``body(n)``, and returns n: the number of the run, in this test."""
    runs: list[None] = []
    options = {**FAST, **options}
    if shop.kind is not None and shop.kind.is_async:

        @shop.inbox.handler(connect=connect, **options)
        async def asynchronous(conn: Any, message: eo.Message[int]) -> int:
            runs.append(None)
            number = len(runs)
            await run(conn, shop.effect(f"run {number}"))
            body(number)
            return number

        return asynchronous

    @shop.inbox.handler(connect=connect, **options)
    def sync(conn: Any, message: eo.Message[int]) -> int:
        runs.append(None)
        number = len(runs)
        run_sync(conn, shop.effect(f"run {number}"))
        body(number)
        return number

    return sync


# -- F30: the answer to a COMMIT is lost

CUT = [
    "psycopg",
    "psycopg, async",
    "asyncpg",
    "SQLAlchemy Session, psycopg",
    "SQLAlchemy AsyncSession, asyncpg",
    "Django, postgresql",
    "pymysql",
    "aiomysql",
    "SQLAlchemy Connection, pymysql",
    "SQLAlchemy AsyncConnection, aiomysql",
]


@pytest.fixture(params=CUT)
def kind(request: pytest.FixtureRequest) -> Kind:
    return next(kind for kind in KINDS if kind.name == request.param)


@pytest.fixture
def cut(request: pytest.FixtureRequest, kind: Kind, unique_name: str) -> Iterator[tuple[Shop, FaultProxy]]:
    """A shop whose connections go through a network that can be cut."""
    place: Place = place_of(request, kind.dialect)
    parts = urlsplit(place.url)
    with FaultProxy(parts.port or 0, parts.hostname or "") as proxy:
        shop = Shop(place, unique_name, kind)
        shop.through = replace(place, url=proxy.through(place.url))
        yield shop, proxy


async def test_a_commit_whose_answer_was_lost_is_found_done(cut: tuple[Shop, FaultProxy]) -> None:
    """F30, F05: it did commit. The handler does not run again, and its result is the stored one."""
    shop, proxy = cut
    async with shop.connect() as connect:
        handle = handler(shop, connect, lambda number: proxy.drop_reply(to=b"COMMIT"), allow_unsafe=True)
        outcome = await maybe_await(handle.call(paid()))
        assert (outcome.value, outcome.replayed) == (1, True)
        assert (shop.rows, shop.effects) == (["order-1"], ["run 1"])
        assert await maybe_await(handle(paid())) == 1


async def test_a_commit_that_never_arrived_is_done_again(cut: tuple[Shop, FaultProxy]) -> None:
    """F30: it did not commit. Nothing of the first run is there, and the second is the one."""
    shop, proxy = cut
    async with shop.connect() as connect:
        handle = handler(shop, connect, lambda number: proxy.reset() if number == 1 else None, allow_unsafe=True)
        outcome = await maybe_await(handle.call(paid()))
        assert (outcome.value, outcome.replayed) == (2, False)
        assert (shop.rows, shop.effects) == (["order-1"], ["run 2"])


async def test_a_network_that_stays_away_is_told_and_nothing_is_recorded(cut: tuple[Shop, FaultProxy]) -> None:
    shop, proxy = cut

    def unplug(number: int) -> None:
        proxy.refuse = True
        proxy.reset()

    async with shop.connect() as connect:
        handle = handler(shop, connect, unplug, allow_unsafe=True, retries=1)
        with pytest.raises(eo.StoreUnavailable) as raised:
            await asyncio.wait_for(asyncio.to_thread(handle, paid()) if not shop.kind.is_async else handle(paid()), 60)
        assert raised.value.__cause__ is not None
        assert shop.rows == shop.effects == []
        proxy.heal()


# -- F31: the database gives up


@contextmanager
def rival(place: Place) -> Iterator[Any]:
    conn = opened(place)
    try:
        yield conn
    finally:
        conn.close()


def counted(shop: Shop) -> None:
    """Two counters of this test's own."""
    with shop.place.connected() as execute:
        execute(f"CREATE TABLE {shop.scope} (id int PRIMARY KEY, n int NOT NULL)")
        execute(f"INSERT INTO {shop.scope} VALUES (1, 0), (2, 0)")


#: So many rows that a server which ends the transaction that has written less ends the other.
MUCH = "WITH RECURSIVE s(n) AS (SELECT 10 UNION ALL SELECT n + 1 FROM s WHERE n < 200) SELECT n, 0 FROM s"


def bump(shop: Shop, id_: int) -> str:
    return f"UPDATE {shop.scope} SET n = n + 1 WHERE id = {id_}"


async def test_a_serialization_failure_starts_the_whole_handler_again(postgres_place: Place, unique_name: str) -> None:
    import psycopg

    shop = Shop(postgres_place, unique_name)
    counted(shop)
    conns: list[Any] = []

    def connect() -> Any:
        conn = psycopg.connect(postgres_place.url)
        conn.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        conns.append(conn)
        return conn

    def collide(number: int) -> None:
        if number == 1:  # somebody changes the row after our snapshot
            postgres_place.query(bump(shop, 1))
        run_sync(conns[-1], bump(shop, 1))

    handle = handler(shop, connect, collide)
    assert (handle(paid()), shop.rows, shop.effects) == (2, ["order-1"], ["run 2"])
    assert postgres_place.query(f"SELECT n FROM {shop.scope} WHERE id = 1") == [(2,)]
    assert len(conns) == 2
    assert all(conn.closed for conn in conns)


async def test_mariadb_says_that_a_row_has_changed_since_it_was_read(mysql_place: Place, unique_name: str) -> None:
    """Error 1020 of innodb_snapshot_isolation, the default from MariaDB 11.6 on."""
    from tests.inbox.kinds import pymysql_conn

    if not mysql_place.query("SHOW VARIABLES LIKE 'innodb_snapshot_isolation'"):
        pytest.skip("this server has no innodb_snapshot_isolation")
    shop = Shop(mysql_place, unique_name)
    counted(shop)
    conns: list[Any] = []

    def connect() -> Any:
        conns.append(pymysql_conn(mysql_place, init_command="SET innodb_snapshot_isolation = ON"))
        return conns[-1]

    def collide(number: int) -> None:
        run_sync(conns[-1], f"SELECT * FROM {shop.scope}")
        if number == 1:
            mysql_place.query(bump(shop, 1))
        run_sync(conns[-1], bump(shop, 1))

    handle = handler(shop, connect, collide)
    assert (handle(paid()), shop.rows, shop.effects) == (2, ["order-1"], ["run 2"])
    assert mysql_place.query(f"SELECT n FROM {shop.scope} WHERE id = 1") == [(2,)]


@pytest.mark.parametrize("dialect", ["postgresql", "mysql"])
async def test_a_deadlock_starts_the_whole_handler_again(
    request: pytest.FixtureRequest, dialect: str, unique_name: str
) -> None:
    place: Place = place_of(request, dialect)
    shop = Shop(place, unique_name)
    counted(shop)
    conns: list[Any] = []

    def connect() -> Any:
        conns.append(opened(place))
        return conns[-1]

    with rival(place) as other, ThreadPoolExecutor(1) as pool:

        def collide(number: int) -> None:
            ours = conns[-1]
            run_sync(ours, bump(shop, 1))
            if number > 1:
                return
            if dialect == "postgresql":  # the connection that looks for deadlocks first is the one that is ended
                run_sync(ours, "SET LOCAL deadlock_timeout = '20ms'")
            else:  # the one that has written less
                run_sync(other, f"INSERT INTO {shop.scope} {MUCH}")
            run_sync(other, bump(shop, 2))
            waits = pool.submit(run_sync, other, bump(shop, 1))
            waits.add_done_callback(lambda _: other.rollback())  # so that the second run can go through
            until_waiting(place, waits)
            run_sync(ours, bump(shop, 2))

        handle = handler(shop, connect, collide)
        assert (handle(paid()), shop.rows, shop.effects) == (2, ["order-1"], ["run 2"])
    assert place.query(f"SELECT n FROM {shop.scope} WHERE id = 1") == [(1,)]


async def test_a_snapshot_that_is_too_old_starts_the_whole_handler_again(sqlite_place: Place, unique_name: str) -> None:
    """SQLITE_BUSY_SNAPSHOT: the transaction has read, another has written, and now it wants to write."""
    from sqlalchemy import create_engine, event
    from sqlalchemy.pool import NullPool

    shop = Shop(sqlite_place, unique_name)
    engine = create_engine(sqlite_place.sqlalchemy("pysqlite"), poolclass=NullPool)
    begun: list[None] = []

    @event.listens_for(engine, "connect")
    def plain(raw: Any, _: Any) -> None:
        raw.isolation_level = None

    @event.listens_for(engine, "begin")
    def deferred(conn: Any) -> None:
        begun.append(None)
        conn.exec_driver_sql("BEGIN")
        conn.exec_driver_sql("SELECT * FROM effects").fetchall()
        if len(begun) == 1:
            sqlite_place.query("INSERT INTO effects VALUES ('another', 'write')")

    handle = handler(shop, engine.connect)
    assert (handle(paid()), shop.rows, shop.effects) == (1, ["order-1"], ["run 1"])
    assert len(begun) == 2
    engine.dispose()


async def test_in_a_transaction_of_the_callers_nothing_is_repeated(sqlite_place: Place, unique_name: str) -> None:
    """F31: only its owner can start the whole of it again, and is told to."""
    shop = Shop(sqlite_place, unique_name)
    conn: Any = opened(sqlite_place)
    conn.execute("BEGIN")
    conn.execute("SELECT * FROM effects").fetchall()
    sqlite_place.query("INSERT INTO effects VALUES ('another', 'write')")
    for attempt in (shop.inbox.first, lambda conn, key: shop.inbox.call(conn, key, lambda conn, key: None)):
        with pytest.raises(eo.TransactionConflict, match="run the whole of it again") as raised:
            attempt(conn, "k")
        assert isinstance(raised.value.__cause__, sqlite3.OperationalError)
    conn.rollback()
    assert shop.inbox.first(conn, "k")
    conn.close()


async def test_it_gives_up_after_so_many_repetitions(shop: Shop) -> None:
    runs = []

    def conflict(number: int) -> None:
        runs.append(number)
        raise eo.TransactionConflict("a deadlock, again")

    handle = handler(shop, lambda: opened(shop.place), conflict, retries=3)
    with pytest.raises(eo.TransactionConflict):
        handle(paid())
    assert runs == [1, 2, 3, 4]
    assert shop.rows == shop.effects == []


@pytest.mark.parametrize(
    ("options", "longest_pauses"),
    [
        ({}, [0.02, 0.04, 0.08, 0.16, 0.32]),
        ({"retries": 8}, [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0]),
        ({"retries": 3, "backoff": "500ms", "max_backoff": "2s"}, [0.5, 1.0, 2.0]),
        ({"retries": 0}, []),
    ],
    ids=repr,
)
def test_the_pauses_between_repetitions_double_up_to_the_longest(
    sqlite_place: Place,
    unique_name: str,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    longest_pauses: list[float],
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("effectonce.inbox.run_loop.time.sleep", pauses.append)
    monkeypatch.setattr("effectonce.inbox.handler.random.uniform", lambda least, most: most if least == 0 else -1.0)

    @eo.Inbox(scope=unique_name).handler(connect=lambda: opened(sqlite_place), **options)
    def charge(conn: Any, message: Any) -> None:
        raise eo.TransactionConflict("a deadlock, again")

    with pytest.raises(eo.TransactionConflict):
        charge(paid())
    assert pauses == longest_pauses


async def test_an_error_of_the_handler_is_never_repeated(shop: Shop) -> None:
    """Its own, those of other systems, and those of its own statements."""
    for error in (ValueError("no"), ConnectionResetError("of another service"), StopIteration(), KeyboardInterrupt()):
        runs = []

        def fail(number: int, error: BaseException = error, runs: list[int] = runs) -> None:
            runs.append(number)
            raise error

        with pytest.raises(type(error)) as raised:
            handler(shop, lambda: opened(shop.place), fail)(paid())
        assert raised.value is error
        assert runs == [1]
    assert shop.rows == shop.effects == []

    @shop.inbox.handler(connect=lambda: opened(shop.place))
    def mistaken(conn: Any, message: Any) -> None:
        run_sync(conn, "SELECT * FROM a_table_of_ours_that_is_not_there")

    with pytest.raises(Exception, match="a_table_of_ours") as raised:
        mistaken(paid())
    assert not isinstance(raised.value, eo.EffectOnceError)


async def test_a_lock_timeout_of_the_handlers_own_statement_is_its_own_error(
    postgres_place: Place, unique_name: str
) -> None:
    from psycopg.errors import LockNotAvailable

    shop = Shop(postgres_place, unique_name)
    counted(shop)

    @shop.inbox.handler(connect=lambda: opened(postgres_place))
    def handle(conn: Any, message: Any) -> None:
        run_sync(conn, "SET LOCAL lock_timeout = '20ms'")
        run_sync(conn, bump(shop, 1))

    with rival(postgres_place) as other:
        run_sync(other, bump(shop, 1))
        with pytest.raises(LockNotAvailable):
            handle(paid())
    handle(paid())
    assert shop.rows == ["order-1"]


async def test_an_error_that_the_handler_hid_does_not_make_it_done(postgres_place: Place, unique_name: str) -> None:
    """PostgreSQL answers COMMIT with ROLLBACK, and no error, in a transaction that has failed."""
    shop = Shop(postgres_place, unique_name)

    @shop.inbox.handler(connect=lambda: opened(postgres_place), returns=None)
    def hides(conn: Any, message: Any) -> None:
        run_sync(conn, shop.effect("paid"))
        try:
            run_sync(conn, "SELECT 1 / 0")
        except Exception:
            pass

    with pytest.raises(Exception, match="aborted"):
        hides(paid())
    with pytest.raises(Exception, match="aborted"):
        hides(paid())
    assert shop.rows == shop.effects == []


async def test_what_fails_at_the_commit_is_not_remembered_as_done(postgres_place: Place, unique_name: str) -> None:
    """F34, F05: done is what is committed. A deferred constraint fails at the very end."""
    shop = Shop(postgres_place, unique_name)
    with postgres_place.connected() as execute:
        execute(f"CREATE TABLE {shop.scope} (k int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    fails = [True]

    @shop.inbox.handler(connect=lambda: opened(postgres_place))
    def handle(conn: Any, message: Any) -> str:
        run_sync(conn, f"INSERT INTO {shop.scope} VALUES (1)")
        if fails:
            fails.pop()
            run_sync(conn, f"INSERT INTO {shop.scope} VALUES (1)")
        return "done"

    with pytest.raises(Exception, match="duplicate key"):
        handle(paid())
    assert shop.rows == []
    assert not handle.call(paid()).replayed
    assert shop.rows == ["order-1"]


async def test_it_returns_after_the_commit_and_not_before(shop: Shop) -> None:
    """F05: an ack of what it returned acks what is on disk."""
    handle = handler(shop, lambda: opened(shop.place), lambda number: seen.append(shop.rows))
    seen: list[list[str]] = []
    assert handle(paid()) == 1
    assert (seen, shop.rows) == ([[]], ["order-1"])


# -- attempts


async def test_attempts_are_counted_before_it_runs_and_forgotten_with_success(shop: Shop) -> None:
    """F20: in a transaction of their own, since the row of a failed attempt is gone with it."""
    seen: list[int | None] = []

    def fail(number: int) -> None:
        if shop.place.dialect != "sqlite":  # whose one writer is the handler
            seen.append(shop.attempts)
        if number < 3:
            raise RuntimeError("not yet")

    handle = handler(shop, lambda: opened(shop.place), fail, max_attempts=3)
    for attempt in (1, 2):
        with pytest.raises(RuntimeError):
            handle(paid())
        assert shop.attempts == attempt
    outcome = handle.call(paid())
    assert (outcome.value, outcome.attempt, outcome.replayed) == (3, 3, False)
    assert shop.attempts is None
    duplicate = handle.call(paid().with_attempt(5))
    assert (duplicate.value, duplicate.attempt, duplicate.replayed) == (3, 5, True)
    assert shop.attempts is None
    assert seen in ([], [1, 2, 3])


async def test_without_an_attempt_left_it_does_not_run(shop: Shop) -> None:
    runs = []

    def fail(number: int) -> None:
        runs.append(number)
        raise RuntimeError("never")

    handle = handler(shop, lambda: opened(shop.place), fail, max_attempts=2)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            handle(paid())
    for _ in range(2):
        with pytest.raises(eo.AttemptsExhausted, match=f"{shop.place.table}_starts") as exhausted:
            handle(paid())
        assert "the last error was RuntimeError: never;" in str(exhausted.value)
    assert runs == [1, 2]
    assert shop.rows == shop.effects == []


async def test_a_conflict_is_no_attempt_of_the_handlers(shop: Shop) -> None:
    def conflict(number: int) -> None:
        if number < 4:
            raise eo.TransactionConflict("a deadlock")

    outcome = handler(shop, lambda: opened(shop.place), conflict, max_attempts=1).call(paid())
    assert (outcome.value, outcome.attempt) == (4, 1)
    assert shop.effects == ["run 4"]


async def test_a_duplicate_that_came_too_often_waits_for_the_one_that_runs(shop: Shop) -> None:
    """It is counted above the limit, and yet what it waits for may succeed."""
    with ThreadPoolExecutor(1) as pool:

        def meanwhile(number: int) -> None:
            later.append(pool.submit(handle.call, paid()))
            if shop.place.dialect == "postgresql":  # elsewhere the counter waits, too
                until_waiting(shop.place, later[0])

        later: list[Any] = []
        handle = handler(shop, lambda: opened(shop.place), meanwhile, max_attempts=1)
        assert handle(paid()) == 1
        assert later[0].result(30).replayed
    assert shop.effects == ["run 1"]


# -- what it looks like, and what it refuses


def test_it_looks_like_a_function_of_the_message() -> None:
    inbox = eo.Inbox(scope="s")

    @inbox.handler(connect=lambda: None)
    async def pay(conn: Any, message: eo.Message[int]) -> int:
        """Pays."""
        return 1

    @inbox.handler(connect=lambda: None)
    def ship(conn: Any, message: eo.Message[int]) -> int:
        return 1

    assert inspect.iscoroutinefunction(pay)
    assert inspect.isfunction(ship)
    assert not inspect.iscoroutinefunction(ship)
    assert (pay.__name__, pay.__doc__, pay.__module__) == ("pay", "Pays.", __name__)
    assert list(inspect.signature(pay).parameters) == ["message"]
    assert inspect.get_annotations(pay) == {"message": "eo.Message[int]", "return": "int"}


async def test_sync_and_async_are_not_mixed(shop: Shop) -> None:
    """F72: and nothing is recorded."""
    import aiosqlite

    async def coroutine() -> None:
        pass

    def plain(conn: Any, message: Any) -> Any:
        raise AssertionError("it must not run")

    async def asynchronous(conn: Any, message: Any) -> Any:
        raise AssertionError("it must not run")

    def lazy(conn: Any, message: Any) -> Any:
        return coroutine()

    for connect in (lambda: aiosqlite.connect(":memory:"), coroutine, lambda: aiosqlite.connect(":memory:")):
        with pytest.raises(eo.SyncAsyncMismatch, match="make both sync, or both async"):
            shop.inbox.handler(connect=connect)(plain)(paid())
    with pytest.raises(eo.SyncAsyncMismatch, match="make both sync, or both async"):
        await shop.inbox.handler(connect=lambda: opened(shop.place))(asynchronous)(paid())
    with pytest.raises(eo.SyncAsyncMismatch, match="plain `def` that returned coroutine"):
        shop.inbox.handler(connect=lambda: opened(shop.place))(lazy)(paid())
    assert shop.rows == []


async def test_a_handler_that_handles_its_own_message_is_told(shop: Shop) -> None:
    """F72: it would wait for itself, where no database sees a deadlock."""

    @shop.inbox.handler(connect=lambda: opened(shop.place))
    def handle(conn: Any, message: eo.Message[int]) -> None:
        handle(message)

    with pytest.raises(eo.Reentered):
        handle(paid())
    assert shop.rows == []


async def test_a_connection_with_a_transaction_open_is_somebody_elses(shop: Shop) -> None:
    conn = opened(shop.place)
    run_sync(conn, shop.effect("theirs"))
    handle = handler(shop, lambda: nullcontext(conn))
    with pytest.raises(eo.ConfigurationError, match="has a transaction open"):
        handle(paid())
    conn.commit()  # it was neither committed nor rolled back for them
    assert (shop.rows, shop.effects) == ([], ["theirs"])
    assert handle(paid()) == 1
    assert handle(paid("order-2")) == 2
    conn.close()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: None, "must take a connection and a message"),
        (lambda conn: None, "must take a connection and a message"),
        (lambda self, message: None, "is a method"),
        (int, "not int"),
        (7, "not 7"),
    ],
)
def test_what_cannot_be_a_handler_is_refused(wrong: Any, said: str) -> None:
    with pytest.raises(eo.ConfigurationError, match=said):
        eo.Inbox(scope="s").handler(connect=lambda: None)(wrong)


def test_a_generator_has_no_end_at_which_it_is_done() -> None:
    def each(conn: Any, message: Any) -> Iterator[int]:
        yield 1

    with pytest.raises(eo.ConfigurationError, match="is a generator"):
        eo.Inbox(scope="s").handler(connect=lambda: None)(each)


def test_its_options_are_checked_when_it_is_made() -> None:
    inbox = eo.Inbox(scope="s")
    for options in (
        {"connect": sqlite3.connect(":memory:")},
        {"max_attempts": 0},
        {"retries": -1},
        {"backoff": "soon"},
    ):
        with pytest.raises(eo.ConfigurationError):
            inbox.handler(**{"connect": lambda: None, **options})


@pytest.mark.parametrize(
    ("dialect", "setting"),
    [("sqlite", "PRAGMA synchronous = OFF"), ("postgresql", "SET synchronous_commit = off")],
)
async def test_a_database_that_loses_commits_is_refused_before_anything_runs(
    request: pytest.FixtureRequest, unique_name: str, dialect: str, setting: str
) -> None:
    """When it is first used; allow_unsafe is the word for those who know."""
    shop = Shop(place_of(request, dialect), unique_name)

    def connect() -> Any:
        conn = opened(shop.place)
        run_sync(conn, setting)
        conn.commit()
        return conn

    with pytest.raises(eo.UnsafeStore):
        handler(shop, connect)(paid())
    assert shop.rows == []
    assert handler(shop, connect, allow_unsafe=True)(paid()) == 1


async def test_connections_are_given_back_whatever_happens(shop: Shop) -> None:
    given: list[str] = []

    @contextmanager
    def connect() -> Iterator[Any]:
        conn = opened(shop.place)
        given.append("out")
        try:
            yield conn
        finally:
            given.append("back")
            conn.close()

    def fail(number: int) -> None:
        if number == 1:
            raise eo.TransactionConflict("again")
        if number == 2:
            raise RuntimeError("no")

    handle = handler(shop, connect, fail)
    with pytest.raises(RuntimeError):
        handle(paid())
    assert handle(paid()) == 3
    assert handle(paid()) == 3
    assert given == ["out", "back"] * 4


async def test_a_cancelled_handler_leaves_nothing_and_runs_again(postgres_place: Place, unique_name: str) -> None:
    """F16."""
    import psycopg

    shop = Shop(postgres_place, unique_name)
    started = asyncio.Event()
    conns: list[Any] = []

    async def connect() -> Any:
        conns.append(await psycopg.AsyncConnection.connect(postgres_place.url))
        return conns[-1]

    @shop.inbox.handler(connect=connect)
    async def handle(conn: Any, message: eo.Message[int]) -> str:
        await run(conn, shop.effect("paid"))
        if not started.is_set():
            started.set()
            await asyncio.sleep(60)
        return "done"

    task = asyncio.create_task(handle(paid()))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert shop.rows == shop.effects == []
    assert await handle(paid()) == "done"
    assert (shop.rows, shop.effects) == (["order-1"], ["paid"])
    assert all(conn.closed for conn in conns)


def commits_each(place: Place) -> Any:
    """A connection that is in no transaction but after a BEGIN."""
    import psycopg

    from tests.inbox.kinds import pymysql_conn

    if place.dialect == "sqlite":
        return sqlite3.connect(place.path, isolation_level=None)
    if place.dialect == "mysql":
        return pymysql_conn(place, autocommit=True)
    return psycopg.connect(place.url, autocommit=True)


async def test_connections_that_commit_each_statement_are_fine_where_the_transaction_is_ours(shop: Shop) -> None:
    handle = handler(shop, lambda: commits_each(shop.place), lambda number: 1 // (number - 1))
    with pytest.raises(ZeroDivisionError):
        handle(paid())
    assert shop.rows == shop.effects == []
    assert handle(paid()) == 2
    assert (shop.rows, shop.effects) == (["order-1"], ["run 2"])


@pytest.mark.skipif(sys.version_info < (3, 12), reason="`autocommit` came with Python 3.12")
@pytest.mark.parametrize("autocommit", [True, False])
async def test_sqlite_with_autocommit(sqlite_place: Place, unique_name: str, autocommit: bool) -> None:
    """True: `commit` of such a connection does nothing. False: a transaction is always open."""
    import aiosqlite

    shop = Shop(sqlite_place, unique_name)

    def opened() -> sqlite3.Connection:
        return sqlite3.connect(sqlite_place.path, autocommit=autocommit)  # type: ignore[call-arg, unused-ignore]

    handle = handler(shop, opened, lambda number: 1 // (number - 1))
    with pytest.raises(ZeroDivisionError):
        handle(paid())
    assert handle(paid()) == 2
    assert (shop.rows, shop.effects) == (["order-1"], ["run 2"])

    shop.kind = next(kind for kind in KINDS if kind.name == "aiosqlite")
    handle = handler(shop, lambda: aiosqlite.connect(sqlite_place.path, autocommit=autocommit))
    assert await handle(paid("order-2")) == 1

    conn = opened()
    async with aiosqlite.connect(sqlite_place.path, autocommit=autocommit) as aconn:
        for db in (conn, aconn):
            if autocommit:
                with pytest.raises(eo.NotInTransaction):
                    await maybe_await(shop.inbox.first(db, "order-3"))
                with pytest.raises(eo.NotInTransaction):
                    await maybe_await(shop.inbox.call(db, "order-3", lambda conn, key: asyncio.sleep(0)))
            else:
                assert await maybe_await(shop.inbox.first(db, "order-3"))
                await maybe_await(db.rollback())
    conn.close()
    assert shop.rows == ["order-1", "order-2"]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.dialect == "postgresql"], ids=lambda kind: kind.name)
async def test_a_transaction_that_has_failed_is_never_taken_for_committed(
    postgres_place: Place, kind: Kind, unique_name: str
) -> None:
    """Where nothing was written after the error was hidden, the COMMIT itself would seem to work."""
    shop = Shop(postgres_place, unique_name, kind)
    caller = await shop.caller()
    session = session_on(caller.conn)
    with pytest.raises(Exception, match="division by zero"):
        await session.rows("SELECT 1 / 0")
    with pytest.raises(Exception, match=r"its error was hidden|aborted"):
        await session.commit()
    await caller.roll_back()
    await shop.stack.aclose()


def test_in_a_pipeline_a_commit_waits_for_the_end_of_what_may_have_failed(
    postgres_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until that has come, about once in a hundred times, a transaction that has failed looks as if it were at work."""
    import psycopg

    honest, waited = PsycopgSession._sync_pipeline, list[bool]()

    async def sync(session: PsycopgSession) -> None:
        waited.append(True)
        await honest(session)

    with psycopg.connect(postgres_place.url) as conn, conn.pipeline():
        session = session_on(conn)
        run_coroutine(session.rows("SELECT 1"))
        monkeypatch.setattr(PsycopgSession, "_sync_pipeline", sync)
        assert not run_coroutine(session._has_failed())
    assert waited
