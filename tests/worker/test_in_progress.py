"""`InProgress` that a handler raises: the saga or the guard that it calls runs elsewhere. That is no failed attempt."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from typing import Any

import msgspec
import pytest

import effectonce as eo

from .bench import Bench, paid, serving, until
from .test_transactions import Database, sqlite

__all__ = ["sqlite"]  # a fixture


class Order(msgspec.Struct):
    order: int


def attempt_count(bench: Bench, message: eo.Message[Any]) -> int:
    record = bench.store.get("orders/*/billing", message.id)
    assert record is not None
    return record.attempts


async def test_a_message_waits_for_the_saga_that_another_one_runs(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    worker = bench.worker()
    shipped, calls, runs = asyncio.Event(), 0, []
    saga = eo.Saga("order", bench.store, input=Order)

    @saga.step()
    async def ship(order: Order) -> None:
        nonlocal calls
        calls += 1
        await shipped.wait()

    @worker.handler("orders", retry=eo.Retry(1))
    async def fulfil(message: eo.Message[Order]) -> None:
        runs.append(eo.current().attempt)
        await saga.arun("order-1", message.data)

    first, second = paid(), paid()
    with caplog.at_level(logging.WARNING, "effectonce"):
        async with serving(worker):
            await bench.send("orders", first, second)
            await until(lambda: bench.count("nack") == 3)
            shipped.set()
            await until(lambda: bench.count("ack") == 2)
    assert (calls, bench.count("dead")) == (1, 0)
    assert set(runs) == {1}, "none of them counts"
    assert (attempt_count(bench, first), attempt_count(bench, second)) == (1, 1)
    assert bench.delays() == sorted(bench.delays()), "each time it waits longer"
    assert bench.delays()[:3] == pytest.approx([0.2, 0.4, 0.8], abs=0.01)
    assert [record for record in caplog.records if record.name == "effectonce"] == []


async def test_a_lease_that_is_left_of_a_killed_process_is_waited_for_however_short() -> None:
    bench = Bench()
    worker = bench.worker()
    runs = 0

    @worker.handler("orders", retry=eo.Retry(1))
    async def fulfil(message: eo.Message[Any]) -> None:
        nonlocal runs
        runs += 1
        if runs < 12:
            raise eo.InProgress("its lease is still held", 0.01, lease_left=0.03)

    async with serving(worker):
        await bench.send("orders", paid())
        await until(lambda: bench.count("ack") == 1)
    assert (runs, bench.count("dead")) == (12, 0)
    assert set(bench.delays()) == {0.05}


async def test_failures_before_it_stay_counted() -> None:
    bench = Bench()
    worker = bench.worker()
    errors = [ValueError(), eo.InProgress("elsewhere", 0.01), eo.InProgress("elsewhere", 0.01), ValueError()]
    attempts: list[int] = []

    @worker.handler("orders", retry=eo.Retry(2, first="5ms"))
    async def fulfil(message: eo.Message[Any]) -> None:
        attempts.append(message.attempt)
        raise errors[len(attempts) - 1]

    async with serving(worker):
        await bench.send("orders", paid())
        await until(lambda: bench.count("dead") == 1)
    (dead,) = await bench.dead(worker, "orders").alist()
    assert (dead.cause.why, dead.cause.attempts) == ("attempts-exhausted", 2)


async def test_it_is_final_where_the_retry_says_so() -> None:
    bench = Bench()
    worker = bench.worker()

    @worker.handler("orders", retry=eo.Retry(5, on={eo.InProgress: "dead"}))
    async def fulfil(message: eo.Message[Any]) -> None:
        raise eo.InProgress("elsewhere", 0.01)

    async with serving(worker):
        await bench.send("orders", paid())
        await until(lambda: bench.count("dead") == 1)
    (dead,) = await bench.dead(worker, "orders").alist()
    assert (dead.cause.why, bench.count("nack")) == ("refused", 0)


@pytest.mark.parametrize("batch", [False, True])
async def test_in_a_transaction_it_is_undone_and_not_counted_either(
    sqlite: Database,
    batch: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker = sqlite.worker()
    runs = 0

    @worker.handler("orders", batch=batch, retry=eo.Retry(2, first="5ms"))
    def insert(connection: sqlite3.Connection, message: eo.Message[dict[str, int]]) -> None:
        nonlocal runs
        connection.execute("INSERT INTO effects VALUES (?)", (message.data["order"],))
        if message.data["order"] == 1:
            runs += 1
            if runs < 8:
                raise eo.InProgress("of a guard in the handler", 0.01)

    with caplog.at_level(logging.WARNING, "effectonce"):
        async with serving(worker):
            await sqlite.bench.send("orders", *(paid(number) for number in range(3)))
            await until(lambda: sqlite.bench.count("ack") == 3)
    assert (runs, sqlite.effects(), sqlite.bench.count("dead")) == (8, [0, 1, 2], 0)
    assert [record for record in caplog.records if record.name == "effectonce"] == []


async def test_in_a_transaction_deliveries_that_another_process_gave_back_do_not_use_up_the_attempts(
    sqlite: Database,
) -> None:
    """The broker has counted them, and no one else has."""
    worker = sqlite.worker()

    @worker.handler("orders", retry=eo.Retry(2))
    def insert(connection: sqlite3.Connection, message: eo.Message[dict[str, int]]) -> None:
        connection.execute("INSERT INTO effects VALUES (?)", (message.data["order"],))

    await sqlite.bench.send("orders", paid())
    other = sqlite.bench.backend.consumer("orders", group="billing", prefetch=1)
    for _ in range(3):
        await other.nack(await other.receive(1, 5.0))
    async with serving(worker):
        await until(lambda: sqlite.bench.count("ack") == 1)
    assert (sqlite.effects(), sqlite.bench.count("dead")) == ([1], 0)
