"""taskiq on Redis streams: its own receiver, its own result backend, models through both."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from taskiq.receiver import Receiver
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

import effectonce as eo
from effectonce.integrations.taskiq import IdempotencyMiddleware
from tests.harness.web import Program, program


class Payment(BaseModel):
    id: str
    amount: int


@dataclass
class Receipt:
    payment_id: str
    amount: int


@pytest.fixture
async def broker(redis_url: str, unique_name: str) -> AsyncIterator[RedisStreamBroker]:
    results: RedisAsyncResultBackend[Any] = RedisAsyncResultBackend(redis_url, prefix_str=unique_name)
    broker = RedisStreamBroker(redis_url, queue_name=unique_name, consumer_group_name=unique_name, xread_block=20)
    broker = broker.with_result_backend(results).with_middlewares(IdempotencyMiddleware(longest=0.05))
    await broker.startup()
    broker.is_worker_process = True
    finish = asyncio.Event()
    with ThreadPoolExecutor() as threads:
        receiver = Receiver(broker, executor=threads, run_startup=False)
        listening = asyncio.create_task(receiver.listen(finish))
        yield broker
        finish.set()  # a cancellation can get lost on its way through the receiver
        await asyncio.wait_for(listening, 60)
    await broker.shutdown()


async def test_f06_f52_a_duplicate_and_one_beside_the_first_have_one_effect_and_the_same_result(
    broker: RedisStreamBroker, redis_url: str, unique_name: str
) -> None:
    """The one beside the first is sent again until its result is there, and is neither failed nor lost."""
    charges: list[str] = []
    begun, again = asyncio.Event(), asyncio.Event()

    class Noted(IdempotencyMiddleware):
        async def on_error(self, message: Any, result: Any, exception: BaseException) -> None:
            again.set()
            await super().on_error(message, result, exception)

    broker.middlewares.clear()
    broker.add_middlewares(Noted(longest=0.05))
    async with eo.connect(f"{redis_url}?namespace={unique_name}") as store:

        @broker.task(task_name=f"{unique_name}:charge")
        @eo.once(store, scope="charge", key="payment.id")
        async def charge(payment: Payment) -> Receipt:
            charges.append(payment.id)
            begun.set()
            await again.wait()
            return Receipt(payment.id, payment.amount)

        first = await charge.kiq(Payment(id="p1", amount=7))
        await asyncio.wait_for(begun.wait(), 30)
        beside = await charge.kiq(Payment(id="p1", amount=7))
        results = [await task.wait_result(timeout=30, check_interval=0.02) for task in (first, beside)]
        later = await charge.kiq(Payment(id="p1", amount=7))
        results.append(await later.wait_result(timeout=30, check_interval=0.02))
    assert [(result.is_err, result.return_value) for result in results] == [(False, Receipt("p1", 7))] * 3
    assert charges == ["p1"]


def begun(worker: Program) -> list[str]:
    book = Path(worker.dir, "begun.txt")
    return book.read_text().splitlines() if book.exists() else []


@pytest.mark.chaos
async def test_f02_a_killed_workers_task_and_its_duplicate_come_again(
    redis_url: str, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {"BROKER": redis_url, "QUEUE": unique_name}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delitem(sys.modules, "tests.integrations.taskiq_shop", raising=False)
    from tests.integrations import taskiq_shop as shop

    async def begins() -> None:
        while not begun(worker):  # noqa: ASYNC110 - in another process
            await asyncio.sleep(0.02)

    command = ("-m", "taskiq", "worker", "tests.integrations.taskiq_shop:broker", "--workers", "1")
    await shop.broker.startup()
    with program(*command, ready="Listening started", variables=variables) as worker:
        tasks = [await shop.charge.kiq("p1")]
        await asyncio.wait_for(begins(), 30)
        tasks.append(await shop.charge.kiq("p1"))
        worker.kill()
        worker.restart()
        await asyncio.sleep(0.5)  # until the broker takes what the dead one had for given up
        await shop.charge.kiq("p2")  # it looks for that only when something new has come
        results = [await task.wait_result(timeout=30, check_interval=0.02) for task in tasks]
        assert [(result.is_err, result.return_value) for result in results] == [(False, "receipt 2")] * 2
        assert [line for line in begun(worker) if line.startswith("p1")] == ["p1 1", "p1 2"]
        worker.kill()  # which it takes more gently than being stopped
    await shop.broker.shutdown()
    await shop.store.aclose()
