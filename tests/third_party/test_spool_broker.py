from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import effectonce as eo
from effectonce.testing.suites import broker_suite
from effectonce.values.urls import Address

from .spool_broker import SpoolBackend


@pytest.fixture
def site(tmp_path: Path) -> SpoolBackend:
    return SpoolBackend(Address(f"spool://{tmp_path}?ack_window=500ms"))


TestContract = pytest.mark.long(broker_suite(delay=0.1, quiet=0.1))


async def test_a_worker_runs_on_it(tmp_path: Path) -> None:
    broker = eo.Broker(SpoolBackend(Address(f"spool://{tmp_path}/spool")))
    worker = eo.Worker(broker, store=eo.connect("memory://"), name="mailer")
    ran: list[str] = []

    @worker.handler("orders")
    async def handle(message: eo.Message[str]) -> None:
        ran.append(message.data)

    message = eo.Message(type="order", data="o-1")
    await broker.apublish("orders", [message, message, eo.Message(type="order", data="o-2")])
    serving = asyncio.create_task(worker.serve())
    async with asyncio.timeout(60):
        while len(ran) < 2 or any((tmp_path / "spool" / "orders" / "held").iterdir()):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    worker.stop()
    await serving
    assert sorted(ran) == ["o-1", "o-2"]
