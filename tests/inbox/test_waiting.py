"""Two transactions with one key: the second waits for the first, and then knows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

import effectonce as eo
from effectonce.keys import digest
from tests.inbox.conftest import Shop, place_of
from tests.inbox.kinds import Place, run_sync
from tests.inbox.test_inputs import opened


@pytest.fixture(params=["sqlite", "postgresql", "mysql", "mysql without RETURNING"])
def place(request: pytest.FixtureRequest) -> Place:
    dialect, _, without = request.param.partition(" ")
    return replace(place_of(request, dialect), returning=not without)


WAITING = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity"
    " WHERE wait_event_type = 'Lock' AND datname = current_database()",
    # Not information_schema.innodb_trx, which repeats its answer if it is asked more often than ten times a second.
    # Other databases' waits are counted, too: so one of the statements in this database must be running.
    "mysql": "SELECT (SELECT variable_value FROM information_schema.global_status"
    " WHERE variable_name = 'innodb_row_lock_current_waits') * count(*) FROM information_schema.processlist"
    " WHERE db = database() AND command = 'Query' AND id <> connection_id()",
}


def until_waiting(place: Place, future: Future[Any]) -> None:
    """Until the database says that somebody waits for a lock. SQLite cannot say: there, either order is tried."""
    deadline = time.monotonic() + 20
    while place.dialect != "sqlite" and not future.done():
        ((*_, waiting),) = place.query(WAITING[place.dialect])
        if int(waiting):
            return
        assert time.monotonic() < deadline, "nobody waits"
        time.sleep(0.005)


def beside(shop: Shop, first: Callable[[Any], Any], second: Callable[[Any], Any], end: str) -> Any:
    """``first(conn)`` in one transaction, ``second(conn)`` in another that waits, while the first is ended."""
    with ThreadPoolExecutor(1) as pool, closing(opened(shop.place)) as one:
        first(one)
        future = pool.submit(in_transaction, shop, second)
        until_waiting(shop.place, future)
        getattr(one, end)()
        return future.result(30)


def in_transaction(shop: Shop, do: Callable[[Any], Any]) -> Any:
    conn = opened(shop.place)
    try:
        if shop.place.dialect != "sqlite":  # there, a transaction that has read cannot write after another's commit
            run_sync(conn, f"SELECT * FROM {shop.place.table} WHERE scope = 'none'").fetchall()  # its snapshot
        try:
            answer = do(conn)
        except eo.TransactionConflict:
            if shop.place.dialect != "mysql":
                raise
            conn.rollback()  # by MariaDB's innodb_snapshot_isolation, its default since 11.6: run it again
            answer = do(conn)
        conn.commit()
        return answer
    finally:
        conn.close()


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_the_second_waits_for_the_end_of_the_first(shop: Shop, end: str) -> None:
    """F32, both outcomes: committed, it is a duplicate; rolled back, it is the first."""
    message = eo.Message(data=1, key="k")
    answer = beside(
        shop, lambda conn: shop.inbox.first(conn, message), lambda conn: shop.inbox.first(conn, message), end
    )
    assert answer is (end == "rollback")
    assert shop.rows == ["k"]


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_many_wait_for_one(shop: Shop, end: str) -> None:
    answer = beside(
        shop,
        lambda conn: shop.inbox.first(conn, "b"),
        lambda conn: shop.inbox.first_many(conn, ["a", "b", "c"]),
        end,
    )
    assert answer == [True, end == "rollback", True]
    assert shop.rows == ["a", "b", "c"]


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_the_result_of_the_first_is_seen_by_a_transaction_that_is_older_than_it(shop: Shop, end: str) -> None:
    """Under REPEATABLE READ of MariaDB a plain SELECT would find nothing."""
    outcome = beside(
        shop,
        lambda conn: shop.inbox.call(conn, "k", lambda conn, key: "first"),
        lambda conn: shop.inbox.call(conn, "k", lambda conn, key: "second"),
        end,
    )
    assert (outcome.value, outcome.replayed) == (("first", True) if end == "commit" else ("second", False))


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_a_key_of_ones_own_table_waits_as_well(shop: Shop, end: str) -> None:
    payments = shop.inbox.on_table("payments", column="idempotency_key")
    answer = beside(
        shop,
        lambda conn: payments.insert(conn, shop.scope, {"amount": 1}),
        lambda conn: payments.insert(conn, shop.scope, {"amount": 2}),
        end,
    )
    assert (answer.was_inserted, answer.row["amount"]) == ((False, 1) if end == "commit" else (True, 2))
    assert len(shop.place.query(f"SELECT * FROM payments WHERE idempotency_key = '{shop.scope}'")) == 1


async def test_programs_that_start_at_once_may_all_create_the_tables(shop: Shop) -> None:
    """On PostgreSQL both would find no table, and the one whose CREATE TABLE comes second would fail."""
    inbox = eo.Inbox(scope=shop.scope, table=f"{shop.scope}_inbox")
    try:
        beside(shop, inbox.migrate, inbox.migrate, "commit")
        with closing(opened(shop.place)) as conn:
            assert inbox.first(conn, "k")
    finally:
        with shop.place.connected() as run:
            run(f"DROP TABLE {inbox.table_name}")
            run(f"DROP TABLE {inbox.table_name}_starts")


IMPATIENT = {
    "sqlite": "PRAGMA busy_timeout = 50",
    "postgresql": "SET lock_timeout = '50ms'",
    "mysql": "SET innodb_lock_wait_timeout = 1",
}


async def test_a_lock_timeout_is_honoured_and_says_to_come_again(shop: Shop) -> None:
    """F32: `first` leaves the transaction as the database does, `call` always leaves it usable."""
    holder, waiter = opened(shop.place), opened(shop.place)
    assert shop.inbox.first(holder, "k")
    run_sync(waiter, IMPATIENT[shop.place.dialect])
    waiter.commit()
    with pytest.raises(eo.InProgress, match="do not ack this delivery") as raised:
        shop.inbox.call(waiter, "k", lambda conn, key: 1)
    assert raised.value.__cause__ is not None
    if shop.place.dialect != "sqlite":  # whose lock is one for all
        run_sync(waiter, shop.effect("after"))
        waiter.commit()
        assert shop.effects == ["after"]
    if shop.place.dialect != "mysql":  # whose shortest timeout is a second
        with pytest.raises(eo.InProgress):
            shop.inbox.first(waiter, "k")
    waiter.rollback()
    holder.rollback()
    assert shop.inbox.first(waiter, "k")
    for conn in (holder, waiter):
        conn.close()


async def test_a_crowd_of_deliveries_has_one_effect(shop: Shop) -> None:
    """F14, F15: the first runs; all the others get its result."""
    crowd = 6
    gate = threading.Barrier(crowd)

    @shop.inbox.handler(connect=lambda: opened(shop.place))
    def handle(conn: Any, message: eo.Message[int]) -> str:
        run_sync(conn, shop.effect(f"by {message.data}"))
        return "done"

    def deliver(_: int) -> bool:
        gate.wait(20)
        outcome = handle.call(eo.Message(data=1, key="k"))
        assert outcome.value == "done"
        return outcome.replayed

    with ThreadPoolExecutor(crowd) as pool:
        replayed = list(pool.map(deliver, range(crowd)))
    assert sorted(replayed) == [False] + [True] * (crowd - 1)
    assert (shop.rows, shop.effects) == (["k"], ["by 1"])


async def test_a_batch_takes_its_keys_in_one_order_whatever_theirs(shop: Shop) -> None:
    """F70: while it waits for one key, it holds none that comes after it: two batches never wait for each other."""
    if shop.place.dialect == "sqlite":
        return  # one writer at a time
    keys = ["a", "b", "c"]
    if shop.place.dialect == "mysql":
        keys.sort(key=lambda key: digest(shop.scope, key))
    with closing(opened(shop.place)) as holder, closing(opened(shop.place)) as other, ThreadPoolExecutor(1) as pool:
        assert shop.inbox.first(holder, keys[1])
        batch = pool.submit(in_transaction, shop, lambda conn: shop.inbox.first_many(conn, keys[::-1]))
        until_waiting(shop.place, batch)
        run_sync(other, IMPATIENT[shop.place.dialect])
        assert shop.inbox.first(other, keys[2])
        other.rollback()
        holder.rollback()
        assert batch.result(30) == [True, True, True]


async def test_batches_in_opposite_order_do_not_deadlock(shop: Shop) -> None:
    """F70."""
    rounds, gate = 5, threading.Barrier(2)
    keys = [[f"{number}-{at:02}" for at in range(20)] for number in range(rounds)]

    def deliver(step: int) -> list[bool]:
        conn = opened(shop.place)
        answers = []
        for batch in keys:
            gate.wait(20)
            answers += shop.inbox.first_many(conn, batch[::step])[::step]
            conn.commit()
        conn.close()
        return answers

    with ThreadPoolExecutor(2) as pool:
        forward, backward = pool.map(deliver, (1, -1))
    assert all(one is not other for one, other in zip(forward, backward, strict=True))
    assert len(shop.rows) == 20 * rounds


def test_on_postgresql_a_concurrent_duplicate_conflicts_only_at_repeatable_read_or_above(postgres_place: Place) -> None:
    """The first commits after the duplicate's snapshot was taken: the isolation level decides what the duplicate
    sees."""
    psycopg = pytest.importorskip("psycopg")
    inbox = eo.Inbox(scope="isolation", table=postgres_place.table)
    levels = psycopg.IsolationLevel
    for level in (levels.READ_COMMITTED, levels.REPEATABLE_READ, levels.SERIALIZABLE):
        with psycopg.connect(postgres_place.url) as first, psycopg.connect(postgres_place.url) as duplicate:
            duplicate.isolation_level = level
            duplicate.execute("SELECT count(*) FROM effects")  # takes its snapshot
            assert inbox.first(first, level.name)
            first.commit()
            if level is levels.READ_COMMITTED:
                assert not inbox.first(duplicate, level.name)
                duplicate.execute("SELECT 1")  # its transaction can continue
            else:
                with pytest.raises(eo.TransactionConflict):
                    inbox.first(duplicate, level.name)
                duplicate.rollback()
                assert not inbox.first(duplicate, level.name)  # redelivered: it is known
