"""Mode T: the row, the effect and the ack, in this order; both or neither."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg  # type: ignore[import-untyped, unused-ignore]
import psycopg
import pytest

import effectonce as eo
from effectonce.contracts import Delivery
from effectonce.core.guarded_call.run import StoreRun
from effectonce.worker.handler_pool import HandlerPool

from .bench import Bench, give_back_in_disorder, paid, serving, until


class Database:
    """A table of effects and an inbox beside it, and a worker on them."""

    def __init__(self, connect: Callable[[], Any], query: Callable[[str], list[tuple[Any, ...]]], name: str) -> None:
        self.bench = Bench()
        self.connect = connect
        self.query = query
        self.table = name
        self.inbox = eo.Inbox(scope="billing", table=f"{name}_inbox")

    def worker(self, **options: Any) -> eo.Worker:
        return self.bench.worker(store=None, inbox=self.inbox, connect=self.connect, **options)

    def effects(self) -> list[int]:
        return sorted(int(row[0]) for row in self.query(f"SELECT number FROM {self.table}"))

    def rows(self) -> int:
        return int(self.query(f"SELECT count(*) FROM {self.table}_inbox")[0][0])


@pytest.fixture
def sqlite(tmp_path: Path) -> Database:
    path = tmp_path / "shop.db"

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(path, timeout=10)
        connection.execute("PRAGMA synchronous = FULL")
        return connection

    def query(sql: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(path, timeout=10)) as connection:
            return connection.execute(sql).fetchall()

    database = Database(connect, query, "effects")
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("PRAGMA journal_mode = WAL; CREATE TABLE effects (number INTEGER)")
        connection.executescript(database.inbox.schema_sql("sqlite"))
    return database


@pytest.fixture
def postgres(postgres_url: str, unique_name: str) -> Iterator[Database]:
    with psycopg.connect(postgres_url, autocommit=True) as observer:

        def query(sql: str) -> list[tuple[Any, ...]]:
            return observer.execute(sql).fetchall()

        database = Database(lambda: psycopg.AsyncConnection.connect(postgres_url), query, unique_name)
        observer.execute(f"CREATE TABLE {unique_name} (number int)")
        observer.execute(database.inbox.schema_sql("postgresql"))
        yield database
        observer.execute(f"DROP TABLE {unique_name}")


def inserting(database: Database, worker: eo.Worker, **options: Any) -> list[int]:
    """A handler that writes each number; what is in ``failing`` fails after it was written."""
    failing: list[int] = []

    @worker.handler("orders", **options)
    def insert(connection: sqlite3.Connection, message: eo.Message[dict[str, int]]) -> None:
        number = message.data["order"]
        connection.execute("INSERT INTO effects VALUES (?)", (number,))
        assert eo.current().key == message.key
        if number in failing:
            raise ValueError("after its effect")

    return failing


def inserting_async(database: Database, worker: eo.Worker, **options: Any) -> list[int]:
    failing: list[int] = []

    @worker.handler("orders", **options)
    async def insert(connection: Any, message: eo.Message[dict[str, int]]) -> None:
        number = message.data["order"]
        await connection.execute(f"INSERT INTO {database.table} VALUES (%s)", (number,))
        assert eo.current().key == message.key
        if number in failing:
            raise ValueError("after its effect")

    return failing


async def test_the_run_of_a_handler_has_no_lease_and_no_store(sqlite: Database) -> None:
    worker = sqlite.worker()
    runs: list[eo.Run] = []

    @worker.handler("orders")
    def handle(connection: sqlite3.Connection, message: eo.Message[Any]) -> None:
        run = eo.current()
        run.emit("claimed")  # to nobody: the worker emits the events of its transactions itself
        runs.append(run)

    async with serving(worker):
        await sqlite.bench.send("orders", paid(1))
        await until(lambda: bool(runs))
    (run,) = runs
    assert not isinstance(run, StoreRun)
    assert (run.attempt, run.lease_lost, run.replayed, run.min_retention) == (1, False, False, 0)
    assert run.provider_key("stripe")


@pytest.mark.parametrize("batch", [False, True])
async def test_the_effect_happens_once_and_is_acked_after_its_commit(sqlite: Database, batch: bool) -> None:
    """F05, for a transaction each and for one of many."""
    worker = sqlite.worker()
    inserting(sqlite, worker, batch=batch)
    messages = [paid(number) for number in range(30)]
    committed: list[bool] = []

    def check(delivery: Delivery) -> None:
        rows = sqlite.query(f"SELECT 1 FROM effects_inbox WHERE key = '{delivery.packet.id}'")
        committed.append(bool(rows))

    sqlite.bench.on_ack = check
    async with serving(worker):
        await sqlite.bench.send("orders", *messages, *messages[::3])
        await until(lambda: len(committed) == 40)
    assert all(committed)
    assert (sqlite.effects(), sqlite.rows()) == (list(range(30)), 30)


@pytest.mark.parametrize("batch", [False, True])
async def test_on_an_async_driver_too(postgres: Database, batch: bool) -> None:
    worker = postgres.worker()
    inserting_async(postgres, worker, batch=batch)
    messages = [paid(number) for number in range(60)]
    async with serving(worker):
        await postgres.bench.send("orders", *messages, *messages[:20])
        await until(lambda: postgres.bench.count("ack") == 80)
    assert (postgres.effects(), postgres.rows()) == (list(range(60)), 60)


async def test_each_run_each_failure_and_each_duplicate_emits_an_event(sqlite: Database) -> None:
    worker = sqlite.worker()
    events: list[eo.Event] = []
    worker.events.add_hook(events.append)
    failing = inserting(sqlite, worker, retry=eo.Retry(1))
    failing.append(13)
    good, bad = paid(1), paid(13)
    async with serving(worker):
        await sqlite.bench.send("orders", good)
        await until(lambda: sqlite.bench.count("ack") == 1)
        await sqlite.bench.send("orders", good)
        await until(lambda: sqlite.bench.count("ack") == 2)
        await sqlite.bench.send("orders", paid(2, id=good.id))
        await until(lambda: sqlite.bench.count("dead") == 1)
        await sqlite.bench.send("orders", bad)
        await until(lambda: sqlite.bench.count("dead") == 2)
    runs = [event for event in events if event.kind != "dead_lettered"]
    assert [(event.kind, event.key, event.detail) for event in runs] == [
        ("first", good.id, ""),
        ("duplicate", good.id, ""),
        ("mismatch", good.id, "PayloadMismatch"),
        ("released", bad.id, "ValueError"),
    ]
    assert {event.scope for event in runs} == {"orders/*/billing"}
    assert [0.0 < event.seconds < 60.0 for event in runs] == [True, False, False, True]


async def test_f58_a_transaction_that_runs_when_the_worker_stops_is_let_end(postgres: Database) -> None:
    worker = postgres.worker(drain="1h")
    running, go = asyncio.Event(), asyncio.Event()

    @worker.handler("orders")
    async def insert(connection: Any, message: eo.Message[dict[str, int]]) -> None:
        running.set()
        await go.wait()
        await connection.execute(f"INSERT INTO {postgres.table} VALUES (%s)", (message.data["order"],))

    task = asyncio.create_task(worker.serve())
    await postgres.bench.send("orders", paid(1))
    await running.wait()
    worker.stop()
    await until(lambda: worker.phase == "draining")
    asyncio.get_running_loop().call_later(0.05, go.set)
    await asyncio.wait_for(task, 60)
    assert (postgres.effects(), postgres.bench.count("ack"), postgres.bench.count("nack")) == ([1], 1, 0)


async def test_if_one_of_a_batch_fails_each_stands_or_falls_alone(sqlite: Database) -> None:
    worker = sqlite.worker()
    failing = inserting(sqlite, worker, batch=True, retry=eo.Retry(2, first="5ms"))
    failing.append(7)
    async with serving(worker):
        await sqlite.bench.send("orders", *(paid(number) for number in range(20)))
        await until(lambda: sqlite.bench.count("dead") == 1 and sqlite.bench.count("ack") == 19)
    assert sqlite.effects() == [number for number in range(20) if number != 7]
    (dead,) = await sqlite.bench.dead(worker, "orders").alist()
    assert (dead.cause.why, dead.cause.attempts, dead.cause.text) == ("attempts-exhausted", 2, "after its effect")
    assert dead.cause.scope == "orders/*/billing"


async def test_if_one_of_a_batch_fails_on_an_async_driver(postgres: Database) -> None:
    worker = postgres.worker()
    failing = inserting_async(postgres, worker, batch=True, retry=eo.Retry(1))
    failing.append(3)
    async with serving(worker):
        await postgres.bench.send("orders", *(paid(number) for number in range(10)))
        await until(lambda: postgres.bench.count("dead") == 1 and postgres.bench.count("ack") == 9)
    assert postgres.effects() == [number for number in range(10) if number != 3]


async def test_one_ordering_key_shares_a_transaction_in_its_order(sqlite: Database) -> None:
    worker = sqlite.worker()
    order: list[tuple[str | None, int]] = []
    sizes: list[int] = []

    @worker.handler("orders", batch=True, concurrency=1, retry=eo.Retry(3, first="5ms"))
    def insert(connection: sqlite3.Connection, message: eo.Message[dict[str, int]]) -> None:
        number = message.data["order"]
        connection.execute("INSERT INTO effects VALUES (?)", (number,))
        sizes.append(connection.total_changes)
        if number == 4 and not failed:
            failed.append(number)
            raise ValueError
        order.append((message.ordering_key, number))

    failed: list[int] = []
    async with serving(worker):
        await sqlite.bench.send_unordered("orders", *(paid(n, ordering_key=f"k{n % 2}") for n in range(12)))
        await until(lambda: sqlite.bench.count("ack") == 12)
    assert sqlite.effects() == list(range(12))
    rows = [int(row[0]) for row in sqlite.query("SELECT number FROM effects ORDER BY rowid")]
    assert [number for number in rows if number % 2] == [1, 3, 5, 7, 9, 11]
    assert [number for number in rows if not number % 2] == [0, 2, 4, 6, 8, 10], "those behind it waited with it"


async def test_one_key_with_another_payload_is_a_dead_letter_and_its_batch_mates_are_not(sqlite: Database) -> None:
    worker = sqlite.worker()
    inserting(sqlite, worker, batch=True)
    await sqlite.bench.send("orders", paid(1, id="one"))
    async with serving(worker):
        await until(lambda: sqlite.bench.count("ack") == 1)
        await sqlite.bench.send("orders", paid(2, id="one"), *(paid(number) for number in range(3, 8)))
        await until(lambda: sqlite.bench.count("dead") == 1 and sqlite.bench.count("ack") == 6)
    assert sqlite.effects() == [1, 3, 4, 5, 6, 7]
    (dead,) = await sqlite.bench.dead(worker, "orders").alist()
    assert dead.cause.why == "payload-mismatch"


async def test_a_missing_table_is_said_before_anything_is_received(sqlite: Database) -> None:
    sqlite.query("DROP TABLE effects_inbox")
    worker = sqlite.worker()
    inserting(sqlite, worker)
    with pytest.raises(eo.SchemaMissing):
        await worker.serve()


async def test_a_database_that_may_lose_commits_is_refused(sqlite: Database) -> None:
    def careless() -> sqlite3.Connection:
        connection = sqlite3.connect(sqlite.query("PRAGMA database_list")[0][2])
        connection.execute("PRAGMA synchronous = OFF")
        return connection

    sqlite.connect = careless
    worker = sqlite.worker()
    inserting(sqlite, worker)
    with pytest.raises(eo.UnsafeStore, match="synchronous"):
        await worker.serve()


async def test_a_database_that_is_away_is_waited_for_and_no_attempt_is_counted(sqlite: Database) -> None:
    away = asyncio.Event()
    connect = sqlite.connect

    def flaky() -> Any:
        if away.is_set():
            raise (
                eo.StoreUnavailable("it is away") if False else sqlite3.OperationalError("unable to open database file")
            )
        return connect()

    sqlite.connect = flaky
    worker = sqlite.worker()
    inserting(sqlite, worker, retry=eo.Retry(1))
    async with serving(worker):
        await asyncio.sleep(0.05)
        away.set()
        await sqlite.bench.send("orders", paid(1))
        await asyncio.sleep(0.5)
        assert sqlite.bench.noted == []
        away.clear()
        await until(lambda: sqlite.bench.count("ack") == 1)
    assert sqlite.effects() == [1]


class Killed(BaseException):
    pass


@pytest.mark.parametrize(
    ("counts", "deaths"), [(True, 3), (False, 2)], ids=["a broker that counts", "one that does not"]
)
async def test_f20_poison_in_a_transaction_is_parked_after_two_counted_starts(
    sqlite: Database, counts: bool, deaths: int
) -> None:
    """A start that ended without a word stays unreported. The start of a first delivery is not counted; where the
    broker does not tell, the first deliveries of a process may be later ones."""
    if not counts:
        sqlite.bench.count_nothing()
    message = paid(3)
    starts = 0
    loop = asyncio.get_running_loop()
    for life in range(deaths + 1):
        worker = sqlite.worker()
        died = asyncio.Event()

        @worker.handler("orders")
        def insert(
            connection: sqlite3.Connection, message: eo.Message[dict[str, int]], died: asyncio.Event = died
        ) -> None:
            nonlocal starts
            starts += 1
            loop.call_soon_threadsafe(died.set)
            raise Killed  # the row of the count stays as after kill -9

        if life == 0:
            await sqlite.bench.send("orders", message)
        task = asyncio.create_task(worker.serve())
        if life < deaths:
            await died.wait()
            with pytest.raises(Killed):
                await task
        else:
            await until(lambda: sqlite.bench.count("dead") == 1)
            worker.stop()
            await task
    assert starts == deaths
    (dead,) = await sqlite.bench.dead(worker, "orders").alist()
    assert (dead.cause.why, dead.cause.attempts) == ("poison", 2)


async def test_f51_redriving_in_mode_t(sqlite: Database) -> None:
    worker = sqlite.worker()
    failing = inserting(sqlite, worker, retry=eo.Retry(1))
    failing += [1, 2]
    dlq = sqlite.bench.dead(worker, "orders")
    async with serving(worker):
        await sqlite.bench.send("orders", paid(1, id="a"), paid(2, id="b"))
        await until(lambda: sqlite.bench.count("dead") == 2)
        failing.clear()
        await sqlite.bench.send("orders", paid(2, id="b"))
        await until(lambda: sqlite.bench.count("ack") == 1)
        report = await dlq.aredrive(dry_run=True)
        assert {each.dead.packet.id: each.fate for each in report} == {"a": "execute", "b": "no-op"}
        assert sqlite.effects() == [2]
        assert [each.sent for each in await dlq.aredrive()] == [True, True]
        await until(lambda: sqlite.bench.count("ack") == 3)
    assert sqlite.effects() == [1, 2]


async def test_f51_a_new_generation_in_mode_t_runs_what_is_done_again_and_is_audited(sqlite: Database) -> None:
    worker = sqlite.worker()
    events: list[eo.Event] = []
    worker.events.add_hook(events.append)
    failing = inserting(sqlite, worker, retry=eo.Retry(1))
    failing.append(1)
    message = paid(1)
    async with serving(worker):
        await sqlite.bench.send("orders", message)
        await until(lambda: sqlite.bench.count("dead") == 1)
        failing.clear()
        await sqlite.bench.send("orders", message)  # its duplicate succeeds
        await until(lambda: sqlite.bench.count("ack") == 1)
        (report,) = await sqlite.bench.dead(worker, "orders").aredrive(new_generation=True)
        assert (report.fate, report.sent, report.new_generation) == ("execute", True, True)
        await until(lambda: sqlite.bench.count("ack") == 2)
    assert sqlite.effects() == [1, 1]
    redriven = [(event.key, event.detail) for event in events if event.kind == "redriven"]
    assert redriven == [(message.key or message.id, "new generation, was no-op")]


def test_mode_t_takes_a_connection_and_knows_no_leases(sqlite: Database) -> None:
    worker = sqlite.worker()
    with pytest.raises(eo.ConfigurationError, match=r"must take \(connection, message\)"):
        worker.handler("orders")(lambda message: None)
    with pytest.raises(eo.ConfigurationError, match="nothing is leased"):
        worker.handler("orders", on_error="doubt")(lambda connection, message: None)
    with pytest.raises(eo.ConfigurationError, match="go together"):
        sqlite.bench.worker(store=None, inbox=sqlite.inbox)
    with pytest.raises(eo.ConfigurationError, match="either store="):
        sqlite.bench.worker(inbox=sqlite.inbox, connect=sqlite.connect)
    with pytest.raises(eo.ConfigurationError, match="needs inbox="):
        sqlite.bench.worker().handler("orders", batch=True)(lambda message: None)


async def test_where_the_broker_does_not_count_the_first_that_come_may_have_come_before(sqlite: Database) -> None:
    """What the last process left behind runs alone and counted; what follows shares transactions again."""
    sqlite.bench.count_nothing()
    worker = sqlite.worker(prefetch=10)
    sizes: list[int] = []

    @worker.handler("orders", batch=True, concurrency=1, retry=eo.Retry(2, first="5ms"))
    def insert(connection: sqlite3.Connection, message: eo.Message[dict[str, int]]) -> None:
        if message.data["order"] == 70:
            raise ValueError
        connection.execute("INSERT INTO effects VALUES (?)", (message.data["order"],))
        sizes.append(connection.total_changes)

    async with serving(worker):
        await sqlite.bench.send("orders", *(paid(number) for number in range(80)))
        await until(lambda: sqlite.bench.count("ack") == 79 and sqlite.bench.count("dead") == 1)
    assert sqlite.effects() == [number for number in range(80) if number != 70]
    assert max(sizes) > 4, "in one transaction with others"
    assert sqlite.query("SELECT unreported, reported FROM effects_inbox_starts") == [(0, 2)], "of the dead letter"


async def test_f74_what_others_have_only_received_has_used_no_attempt(sqlite: Database) -> None:
    """However often the broker has counted a delivery of it."""
    worker = sqlite.worker()
    attempts: list[tuple[int, int]] = []

    @worker.handler("orders", retry=eo.Retry(2, first="5ms"))
    def note(connection: sqlite3.Connection, message: eo.Message[Any]) -> None:
        attempts.append((message.attempt, eo.current().attempt))

    await sqlite.bench.backend.declare("orders", group=worker.name)
    await sqlite.bench.send("orders", paid(1))
    other = sqlite.bench.backend.consumer("orders", group=worker.name, prefetch=1)
    for _ in range(5):
        await other.nack(await other.receive(1, 5.0))
    await other.close()
    async with serving(worker):
        await until(lambda: sqlite.bench.count("ack") + sqlite.bench.count("dead") == 1)
    assert (attempts, sqlite.bench.count("dead")) == ([(1, 1)], 0)


async def test_a_plain_def_that_returns_a_coroutine_is_never_taken_for_done(sqlite: Database) -> None:
    """F72: never awaited, recorded, acked, lost."""
    worker = sqlite.worker()

    async def inner(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO effects VALUES (1)")

    worker.handler("orders", batch=True)(lambda connection, message: inner(connection))
    await sqlite.bench.send("orders", paid(1), paid(2))
    with pytest.raises(eo.SyncAsyncMismatch, match="plain `def` that returned coroutine"):
        await worker.serve()
    assert (sqlite.bench.count("ack"), sqlite.rows(), sqlite.bench.left("orders")) == (0, 0, 2)


@pytest.mark.parametrize("goes_on", [False, True])
async def test_f33_a_handler_that_commits_its_batch_loses_no_message_of_it(
    sqlite: Database, goes_on: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """All rows are inserted first: those of the messages behind it would stay, without their effects."""
    worker = sqlite.worker()

    @worker.handler("orders", batch=True, concurrency=1, retry=eo.Retry(2, first="5ms"))
    def insert(connection: sqlite3.Connection, message: eo.Message[dict[str, int]]) -> None:
        number = message.data["order"]
        connection.execute("INSERT INTO effects VALUES (?)", (number,))
        if number == 3:
            connection.commit()
            if goes_on:
                connection.execute("UPDATE effects SET number = number")
        if number == 5 and not failed:
            failed.append(number)
            raise ValueError

    failed: list[int] = []
    await sqlite.bench.send("orders", *(paid(number) for number in range(8)))
    async with serving(worker):
        await until(lambda: sqlite.bench.count("ack") + sqlite.bench.count("dead") == 8)
    assert set(sqlite.effects()) == set(range(8))
    if goes_on:  # it is unknown what of it is committed: it is given up
        assert (sqlite.rows(), sqlite.bench.count("dead")) == (7, 1)
        (dead,) = await sqlite.bench.dead(worker, "orders").alist()
        assert "<locals>.insert has ended the transaction it runs in" in dead.cause.text
    else:
        assert (sqlite.rows(), sqlite.effects()) == (8, list(range(8))), "what is surely committed is not done again"
        assert "<locals>.insert has ended the transaction that it shares" in caplog.text


async def test_f33_a_batch_that_is_committed_on_asyncpg_loses_no_message_either(
    postgres: Database, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """There a transaction is an object of the driver's, which has to be begun again before rows can be deleted."""
    postgres.connect = lambda: asyncpg.connect(postgres_url)
    worker = postgres.worker()
    batches: list[int] = []

    @worker.handler("orders", batch=True, concurrency=1, retry=eo.Retry(2, first="5ms"))
    async def insert(connection: Any, message: eo.Message[dict[str, int]]) -> None:
        number = message.data["order"]
        await connection.execute(f"INSERT INTO {postgres.table} VALUES ({number})")
        batches.append(number)
        if number == 3 and batches.count(3) == 1:
            await connection.execute("COMMIT")

    await postgres.bench.send("orders", *(paid(number) for number in range(8)))
    async with serving(worker):
        await until(lambda: postgres.bench.count("ack") + postgres.bench.count("dead") == 8)
    assert (postgres.rows(), postgres.effects()) == (8, list(range(8)))
    assert "has ended the transaction that it shares" in caplog.text


@pytest.mark.parametrize("lazy", ["generator", "future"])
async def test_f72_a_plain_def_that_returns_what_is_not_done_yet_is_never_taken_for_done(
    sqlite: Database, lazy: str
) -> None:
    worker = sqlite.worker()

    class Later:
        def __await__(self) -> Any: ...

    returned: Any = (number for number in range(3)) if lazy == "generator" else Later()
    worker.handler("orders")(lambda connection, message: returned)
    await sqlite.bench.send("orders", paid(1))
    with pytest.raises(eo.SyncAsyncMismatch, match="so nothing had happened yet"):
        await worker.serve()
    assert (sqlite.bench.count("ack"), sqlite.rows(), sqlite.bench.left("orders")) == (0, 0, 1)


async def test_f20_what_the_drain_has_cancelled_is_no_poison(postgres: Database) -> None:
    """A start that is cancelled in good order is uncounted, however often a deployment does that."""
    await postgres.bench.send("orders", paid(1))
    for life in range(4):
        worker = postgres.worker(drain="10ms")
        started = asyncio.Event()

        @worker.handler("orders", retry=eo.Retry(10))
        async def insert(
            connection: Any, message: eo.Message[Any], life: int = life, started: asyncio.Event = started
        ) -> None:
            started.set()
            if life < 3:
                await asyncio.Event().wait()

        async with serving(worker):
            await asyncio.wait_for(started.wait(), 15)
            if life == 3:
                await until(lambda: postgres.bench.count("ack") == 1)


async def test_f20_of_all_queues_one_that_came_before_runs_at_a_time(sqlite: Database) -> None:
    """Else one would be counted for what another, of another queue, did to their process."""
    sqlite.bench.count_nothing()
    worker = sqlite.worker()
    at_once: list[int] = []
    running: set[str] = set()

    def watch(connection: sqlite3.Connection, message: eo.Message[Any]) -> None:
        running.add(message.id)
        time.sleep(0.02)
        at_once.append(len(running))
        running.discard(message.id)

    for queue in ("a", "b"):
        worker.handler(queue)(watch)
        await sqlite.bench.send(queue, *(paid(number) for number in range(3)))
    async with serving(worker):
        await until(lambda: sqlite.bench.count("ack") == 6)
    assert at_once == [1] * 6


async def test_f20_a_count_that_could_not_be_taken_back_is_taken_back_later(sqlite: Database) -> None:
    sqlite.bench.count_nothing()
    connect, away = sqlite.connect, False

    def flaky() -> Any:
        if away:
            raise sqlite3.OperationalError("unable to open database file")
        return connect()

    sqlite.connect = flaky
    worker = sqlite.worker()
    loop = asyncio.get_running_loop()

    def back() -> None:
        nonlocal away
        away = False

    @worker.handler("orders", retry=eo.Retry(5, first="5ms"))
    def insert(connection: sqlite3.Connection, message: eo.Message[Any]) -> None:
        nonlocal away
        tries.append(message.id)
        if len(tries) < 4:
            away = True
            loop.call_soon_threadsafe(loop.call_later, 0.1, back)
            raise ValueError

    tries: list[str] = []
    async with serving(worker):
        await sqlite.bench.send("orders", paid(1))
        await until(lambda: sqlite.bench.count("ack") == 1)
    assert (len(tries), sqlite.bench.count("dead")) == (4, 0)


async def test_f20_what_came_before_shares_its_transaction_with_no_other(sqlite: Database) -> None:
    """It may have ended a process: the others are not to be undone with it, nor counted."""
    worker = sqlite.worker(prefetch=20)
    go, transactions = threading.Event(), dict[int, list[Any]]()

    @worker.handler("orders", batch=True, concurrency=1, retry=eo.Retry(3, first="1ms", cap="1ms"))
    def insert(connection: sqlite3.Connection, message: eo.Message[dict[str, int]]) -> None:
        transactions.setdefault(message.data["order"], []).append(connection)
        if message.data["order"] == 1 and len(transactions[1]) == 1:
            raise ValueError
        if message.data["order"] == 2:  # what comes meanwhile waits together
            assert go.wait(60)

    async with serving(worker):
        await sqlite.bench.send("orders", paid(1))
        await until(lambda: sqlite.bench.count("nack") == 1 or 1 in transactions)
        await sqlite.bench.send("orders", paid(2))
        await until(lambda: worker.consumers[0].received == 3)
        await sqlite.bench.send("orders", *(paid(number) for number in range(3, 8)))
        await until(lambda: worker.consumers[0].received == 8)
        go.set()
        await until(lambda: sqlite.bench.count("ack") == 7)
    suspect = transactions.pop(1)[-1]
    assert all(suspect is not other for connections in transactions.values() for other in connections)


@pytest.mark.parametrize("delay", ["1ms", "10ms"])
async def test_having_waited_behind_another_is_no_attempt(sqlite: Database, delay: str) -> None:
    """The broker counts its deliveries all the same. However short the delay, what waits behind does not come first."""
    worker = sqlite.worker()
    runs: list[int] = []

    @worker.handler("orders", retry=eo.Retry(3, first=delay, cap=delay))
    def insert(connection: sqlite3.Connection, message: eo.Message[dict[str, int]]) -> None:
        number = message.data["order"]
        runs.append(number)
        if number == 0 or (number == 1 and runs.count(1) < 3):
            raise ValueError

    async with serving(worker):
        await sqlite.bench.send_unordered("orders", *(paid(number, ordering_key="k") for number in range(4)))
        await until(lambda: sqlite.bench.count("ack") == 3 and sqlite.bench.count("dead") == 1)
    assert runs == [0, 0, 0, 1, 1, 1, 2, 3]


async def test_a_batch_whose_handler_cancels_its_task_comes_again_in_its_order(
    postgres: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_back_in_disorder(monkeypatch)
    worker = postgres.worker()
    runs: list[int] = []

    @worker.handler("orders", batch=True, concurrency=1)
    async def insert(connection: Any, message: eo.Message[dict[str, int]]) -> None:
        runs.append(message.data["order"])
        task = asyncio.current_task()
        if len(runs) == 2 and task is not None:
            task.cancel()
        await connection.execute(f"INSERT INTO {postgres.table} VALUES (%s)", (message.data["order"],))

    async with serving(worker):
        await postgres.bench.send_unordered("orders", *(paid(number, ordering_key="k") for number in range(4)))
        await until(lambda: postgres.bench.count("ack") == 4)
    assert runs == [0, 1, 0, 1, 2, 3]
    assert postgres.effects() == [0, 1, 2, 3]


async def test_a_cancellation_of_the_handlers_own_making_is_a_failure(postgres: Database) -> None:
    """Something that it awaited was cancelled: not the message's fate, and no reason to try for ever."""
    postgres.bench.count_nothing()
    worker = postgres.worker()
    tries: list[str] = []

    @worker.handler("orders", retry=eo.Retry(2, first="5ms"))
    async def insert(connection: Any, message: eo.Message[Any]) -> None:
        tries.append(message.id)
        raise asyncio.CancelledError

    async with serving(worker):
        await postgres.bench.send("orders", paid(1))
        await until(lambda: postgres.bench.count("dead") == 1)
    assert len(tries) == 2


async def test_a_batch_that_no_runner_has_taken_goes_back_in_its_order(
    sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HandlerPool, "wake", lambda pool: None)
    worker = sqlite.worker()
    inserting(sqlite, worker, batch=True)
    messages = [paid(number, ordering_key="k") for number in range(60)]  # 50 in the batch, and those behind them
    async with serving(worker):
        await sqlite.bench.send_unordered("orders", *messages)
        await until(lambda: worker.consumers and len(worker.consumers[0].in_flight) == 60)
    assert [id for what, id, _ in sqlite.bench.noted if what == "nack"] == [message.id for message in messages]


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize(
    "error",
    [
        eo.PayloadMismatch("of a guard in the handler"),
        eo.SchemaMissing("of a store in the handler"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_an_error_of_a_guard_inside_the_handler_is_the_handlers_own(
    sqlite: Database, error: Exception, batch: bool
) -> None:
    """It was once taken for the inbox's: tried without end, a dead letter at once, or the end of the worker."""
    worker = sqlite.worker()
    runs: list[int] = []

    @worker.handler("orders", batch=batch, retry=eo.Retry(3, first="5ms"))
    def insert(connection: sqlite3.Connection, message: eo.Message[dict[str, int]]) -> None:
        if message.data["order"] == 1:
            runs.append(1)
            raise error
        connection.execute("INSERT INTO effects VALUES (?)", (message.data["order"],))

    async with serving(worker):
        await sqlite.bench.send("orders", *(paid(number) for number in range(3)))
        await until(lambda: sqlite.bench.count("dead") == 1 and sqlite.bench.count("ack") == 2)
    assert len(runs) >= 3, "each attempt counts, and no more; a batch that is undone repeats the first"
    assert len(runs) <= 4
    assert sqlite.effects() == [0, 2]
    (dead,) = await eo.DeadLetterQueue(worker, "orders").alist()
    assert (dead.cause.why, dead.cause.error) == ("attempts-exhausted", f"effectonce.errors:{type(error).__name__}")
