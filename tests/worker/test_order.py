"""F75: order per key on the brokers that promise it."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

import effectonce as eo

from .bench import serving, until

KEYS = 40


def ordered_broker(kind: str, folder: Path, request: pytest.FixtureRequest) -> eo.Broker:
    if kind == "sqlite":
        return eo.connect_broker(f"sqlite:///{folder}/queue.db")
    return eo.connect_broker(request.getfixturevalue(f"{kind}_url"))


@pytest.mark.quick_on("400-kafka")
@pytest.mark.parametrize("kind", ["sqlite", "kafka"])
@pytest.mark.parametrize("prefetch", [20, 400])
async def test_f75_a_message_that_is_tried_again_is_overtaken_by_none_of_its_key(
    kind: str, prefetch: int, unique_name: str, redis_url: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    broker, store = ordered_broker(kind, tmp_path, request), eo.connect(redis_url, sweep_every=None)
    worker = eo.Worker(broker, store=store, name=unique_name, prefetch=prefetch)
    chance = random.Random(7)
    numbers = range(2000)
    to_fail = {number for number in numbers if chance.random() < 0.2}
    done: dict[str | None, list[int]] = {}

    @worker.handler(unique_name, concurrency=16, retry=eo.Retry(5, first="100ms", cap="100ms"))
    async def handle(message: eo.Message[int]) -> None:
        await asyncio.sleep(0.002)
        if message.data in to_fail:
            to_fail.discard(message.data)
            raise ConnectionError("the first attempt fails")
        done.setdefault(message.ordering_key, []).append(message.data)

    await broker.backend.declare(unique_name, group=unique_name)
    for first in range(0, len(numbers), 100):
        messages = [
            eo.Message(data=number, ordering_key=f"key-{number % KEYS}") for number in numbers[first : first + 100]
        ]
        await broker.apublish(unique_name, messages)
    async with serving(worker):
        await until(lambda: sum(map(len, done.values())) >= len(numbers), 90)
    await broker.aclose()
    await store.aclose()
    assert all(order == sorted(order) for order in done.values())
