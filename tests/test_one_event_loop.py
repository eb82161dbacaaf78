"""F78: a pool of asyncpg belongs to the event loop that opened it. Whatever sync code calls twice must find it again.

The pool is opened by the first call that needs it, as in a program that imports its engine from a module.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

import effectonce as eo
from effectonce.core.shared_loop import shared_loop
from effectonce.doctor import examine
from effectonce.integrations.aws_lambda import sqs_batch
from effectonce.testing import TestBroker, assert_idempotent
from tests.harness import waiting


class Bank:
    """An account in PostgreSQL, written through async SQLAlchemy over an asyncpg pool of one connection."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.engine = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://"), pool_size=1)

    async def pay(self, amount: int = 1) -> None:
        async with self.engine.begin() as connection:
            await connection.execute(text("UPDATE account SET paid = paid + :amount"), {"amount": amount})

    def paid(self) -> int:
        """What the account says on a connection of its own."""
        with psycopg.connect(self._url) as connection:
            (paid,) = connection.execute("SELECT paid FROM account").fetchone() or (0,)
            return int(paid)

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[AsyncConnection]:
        async with self.engine.connect() as connection:
            yield connection


@pytest.fixture
def bank(empty_postgres: str) -> Iterator[Bank]:
    with psycopg.connect(empty_postgres) as connection:
        connection.execute("CREATE TABLE account AS SELECT 0 AS paid")
    with eo.connect(empty_postgres, sweep_every=None) as store:
        store.migrate()
    bank = Bank(empty_postgres)
    yield bank
    shared_loop.run(bank.engine.dispose())


@pytest.fixture
def store() -> Iterator[eo.Store]:
    with eo.connect("memory://", sweep_every=None) as store:
        yield store


def test_a_sweeper_resumes_sagas_of_one_sweep_after_another(bank: Bank, store: eo.Store) -> None:
    saga = eo.Saga("pay", store, input=int)

    @saga.step()
    async def pay(amount: int) -> None:
        await bank.pay(amount)

    with saga.sweeper(every="5ms"):
        for number in range(3):
            saga.start(f"order-{number}", 1)
            waiting.until(lambda id=f"order-{number}": saga_state(saga, id) == "done")
    assert bank.paid() == 3


def test_every_warm_invocation_of_a_lambda_handler_works(bank: Bank, store: eo.Store) -> None:
    @eo.once(store, scope="pay", key="order.id")
    async def pay(order: dict[str, str]) -> None:
        await bank.pay()

    handle = sqs_batch(pay)
    for number in range(3):
        records = [{"messageId": f"m{number}", "body": json.dumps({"id": f"order-{number}"})}]
        assert handle({"Records": records}, None) == {"batchItemFailures": []}
    assert bank.paid() == 3


def saga_state(saga: eo.Saga[Any], id: str) -> str:
    record = saga.store.get(saga.scope, id)
    assert record is not None
    return record.state


@pytest.fixture
def workers(bank: Bank) -> list[eo.Worker]:
    broker = eo.connect_broker("memory://")
    workers = [
        eo.Worker(broker, inbox=eo.Inbox(scope=name), connect=bank.connect, name=name) for name in ("billing", "mail")
    ]
    for worker in workers:

        @worker.handler("orders")
        async def handle(connection: AsyncConnection, message: eo.Message[Any]) -> None:
            await connection.execute(text("UPDATE account SET paid = paid + 1"))

    return workers


def test_doctor_examines_two_workers_with_one_pool(workers: list[eo.Worker]) -> None:
    assert [finding for finding in examine(programs=workers).findings if finding.severity == "error"] == []
    assert [finding for finding in examine(programs=workers).findings if finding.severity == "error"] == []


def test_a_worker_runs_after_its_check(bank: Bank, workers: list[eo.Worker]) -> None:
    worker = workers[0]
    worker.run_check()
    worker.broker.publish("orders", eo.Message(type="order.paid", data=1))

    async def serve_until_paid() -> None:
        serving = asyncio.create_task(worker.serve())
        await asyncio.to_thread(waiting.until, lambda: serving.done() or bank.paid() == 1)
        worker.stop()
        await serving

    shared_loop.drive(serve_until_paid())
    assert bank.paid() == 1


def test_a_test_broker_delivers_and_redelivers(bank: Bank, store: eo.Store) -> None:
    broker = TestBroker()
    worker = eo.Worker(broker, inbox=eo.Inbox(scope="billing"), connect=bank.connect, name="billing")

    @worker.handler("orders")
    async def handle(connection: AsyncConnection, message: eo.Message[Any]) -> None:
        await connection.execute(text("UPDATE account SET paid = paid + 1"))

    message: eo.Message[Any] = eo.Message(type="order.paid", data=1)
    broker.deliver(worker, "orders", message)
    broker.redeliver(worker, message)
    broker.deliver(worker, "orders", eo.Message(type="order.paid", data=2))
    assert bank.paid() == 2


def test_a_handler_is_asserted_idempotent_and_then_called(bank: Bank, store: eo.Store) -> None:
    @eo.once(store, scope="pay", key="id")
    async def pay(id: str) -> None:
        await bank.pay()

    assert_idempotent(pay, "order-1", effects=bank.paid)
    sqs_batch(pay)({"Records": [{"messageId": "m", "body": '"order-2"'}]}, None)


def test_sync_calls_of_several_threads_share_the_pool(bank: Bank) -> None:
    threads = [threading.Thread(target=lambda: shared_loop.run(bank.pay())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert bank.paid() == 8
