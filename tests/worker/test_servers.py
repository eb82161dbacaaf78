"""On real servers, with a network that breaks: one worker, one effect for each message."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlsplit

import pytest

import effectonce as eo
from tests.harness.proxy import FaultProxy

from .bench import paid, serving, until


@pytest.mark.quick_on("rabbitmq")
@pytest.mark.parametrize("kind", ["redis", "rabbitmq"])
async def test_f59_a_connection_that_breaks_in_mid_handler_doubles_nothing(
    kind: str, unique_name: str, request: pytest.FixtureRequest
) -> None:
    """F56, too: what was delivered on the old connection is not acked on the new one; it is redelivered, and known."""
    url = request.getfixturevalue(f"{kind}_url")
    store = eo.connect(request.getfixturevalue("redis_url"), sweep_every=None)
    effects: list[int] = []
    with FaultProxy(urlsplit(url).port or 0) as proxy:
        broker = eo.connect_broker(proxy.through(url) + ("?ack_window=2s" if kind == "redis" else ""))
        worker = eo.Worker(broker, store=store, name=unique_name)

        @worker.handler(unique_name, concurrency=10, lease="1s")
        async def charge(message: eo.Message[dict[str, int]]) -> None:
            await asyncio.sleep(0.005)
            effects.append(message.data["order"])

        direct = eo.connect_broker(url)
        await direct.backend.declare(unique_name, group=unique_name)
        await direct.apublish(unique_name, [paid(number) for number in range(200)])
        async with serving(worker):
            for cut in range(1, 5):
                await until(lambda: len(effects) >= 40 * cut)  # noqa: B023
                await asyncio.to_thread(proxy.reset)
            await until(lambda: len(effects) == 200)
            await asyncio.sleep(0.1)
        await direct.aclose()
        await broker.aclose()
    assert sorted(effects) == list(range(200))
    await store.aclose()


async def test_f36_a_store_that_is_cut_off_stops_the_worker_and_nothing_is_lost(
    redis_url: str, unique_name: str
) -> None:
    effects: list[int] = []
    with FaultProxy(urlsplit(redis_url).port or 0) as proxy:
        store = eo.connect(f"{proxy.through(redis_url)}?timeout=500ms&connect_timeout=500ms", sweep_every=None)
        broker = eo.connect_broker(redis_url)
        worker = eo.Worker(broker, store=store, name=unique_name)

        @worker.handler(unique_name, concurrency=10, lease="10s")
        async def charge(message: eo.Message[dict[str, int]]) -> None:
            await asyncio.sleep(0.002)
            effects.append(message.data["order"])

        await broker.backend.declare(unique_name, group=unique_name)
        await broker.apublish(unique_name, [paid(number) for number in range(300)])
        async with serving(worker):
            await until(lambda: len(effects) >= 50)
            proxy.refuse = True
            await asyncio.to_thread(proxy.reset)
            await asyncio.sleep(0.5)
            halted = len(effects)
            await asyncio.sleep(0.2)
            assert len(effects) == halted
            proxy.heal()
            await until(lambda: len(effects) == 300)
            await until(lambda: store.stats().counts["done"] >= 300)
        await broker.aclose()
        await store.aclose()
    assert sorted(effects) == list(range(300)), "while its lease holds, nothing runs twice"


async def test_dead_letters_on_real_brokers(unique_name: str, tmp_path: Any, request: pytest.FixtureRequest) -> None:
    store = eo.connect("memory://")
    for kind in ("sqlite", "redis", "rabbitmq"):
        url = f"sqlite:///{tmp_path}/q.db" if kind == "sqlite" else request.getfixturevalue(f"{kind}_url")
        broker = eo.connect_broker(url)
        worker = eo.Worker(broker, store=store, name=unique_name)
        failing = True
        done: list[str] = []

        @worker.handler(unique_name, scope=kind, retry=eo.Retry(1))
        async def charge(message: eo.Message[Any]) -> None:
            if failing:  # noqa: B023
                raise ValueError("not today")
            done.append(message.id)  # noqa: B023

        dlq = eo.DeadLetterQueue(worker, unique_name)
        messages = [paid(number, ordering_key="k", headers={"shop": "north"}) for number in range(3)]
        await broker.backend.declare(unique_name, group=unique_name)
        await broker.apublish(unique_name, messages)
        async with serving(worker):
            for _ in range(500):
                if await dlq.acount() == 3:
                    break
                await asyncio.sleep(0.02)
            dead = await dlq.alist()
            assert {each.cause.why for each in dead} == {"attempts-exhausted"}
            assert {each.message.headers["shop"] for each in dead if each.message} == {"north"}
            assert [each.fate for each in await dlq.aredrive(dry_run=True)] == ["resume"] * 3
            failing = False
            assert all(each.sent for each in await dlq.aredrive())
            await until(lambda: len(done) == 3)  # noqa: B023
        assert (sorted(done), await dlq.acount()) == (sorted(message.id for message in messages), 0)
        await broker.aclose()
