"""A relay that starts before the worker that declares its queue: nothing is parked, and nothing lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import effectonce as eo
from tests.harness.waiting import auntil

from .harness import Database, message


@pytest.mark.parametrize(
    ("options", "remedy"),
    [("declare=no", "declare=no leaves that to you: create it"), ("exchange=amq.direct", "start its worker")],
)
async def test_on_rabbitmq_a_missing_queue_is_waited_for_and_named(
    sqlite: Database, rabbitmq_url: str, unique_name: str, options: str, remedy: str
) -> None:
    sqlite.send(*(message(number) for number in range(3)), to=unique_name)
    broker = eo.connect_broker(f"{rabbitmq_url}?{options}")
    relay = sqlite.relay(broker, retry=eo.Retry(1))
    refusals: list[str] = []
    relay.store.add_hook(lambda event: refusals.append(event.detail) if event.kind == "publish_failed" else None)
    serving = asyncio.create_task(relay.serve())
    await auntil(lambda: len(refusals) == 2)
    assert f"queue {unique_name}" in refusals[0]
    assert remedy in refusals[0]
    assert sqlite.states() == {"waiting": 3}
    assert sqlite.execute("SELECT DISTINCT attempts FROM {outbox}") == [(0,)]
    worker = eo.connect_broker(rabbitmq_url if options == "declare=no" else f"{rabbitmq_url}?{options}")
    await worker.backend.declare(unique_name, group="billing")
    await auntil(lambda: sqlite.states() == {"published": 3})
    relay.stop()
    await serving
    consumer: Any = worker.backend.consumer(unique_name, group="billing", prefetch=10)
    received = [delivery.packet.id for delivery in await consumer.receive(10, 5.0)]
    assert sorted(received) == ["m0", "m1", "m2"]
    await consumer.close()
    await broker.aclose()
    await worker.aclose()
