"""F82: the ack of a lone message does not wait for the end of a fetch that waits for the next one."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import redis

import effectonce as eo
from effectonce.backends.redis.stream import StreamKeys
from effectonce.contracts import Delivery, Packet
from effectonce.core.events import Events
from effectonce.errors import BrokerUnavailable
from effectonce.worker.delivery_settler import DeliverySettler

from .bench import serving, until

#: An ack waits up to 20 ms for a fetch, or 30 ms for a poll of SQLite; the rest is for a busy machine.
LONGEST_S = 0.2


def sqlite_queue(request: pytest.FixtureRequest, name: str) -> tuple[str, Callable[[], int]]:
    path: Path = request.getfixturevalue("tmp_path") / "queue.db"

    def unsettled() -> int:
        with closing(sqlite3.connect(path, timeout=10)) as connection:
            return int(connection.execute("SELECT count(*) FROM effectonce_messages").fetchone()[0])

    return f"sqlite:///{path}", unsettled


def redis_queue(request: pytest.FixtureRequest, name: str) -> tuple[str, Callable[[], int]]:
    url: str = request.getfixturevalue("redis_url")
    client: Any = redis.Redis.from_url(url)
    keys = StreamKeys("eo", name, name)
    return url, lambda: int(client.xpending(keys.stream, keys.group)["pending"])


@pytest.mark.parametrize("queue", [redis_queue, sqlite_queue], ids=["redis", "sqlite"])
async def test_f82_a_lone_message_is_settled_at_once(
    queue: Callable[..., tuple[str, Callable[[], int]]], unique_name: str, request: pytest.FixtureRequest
) -> None:
    url, unsettled = queue(request, unique_name)
    broker = eo.connect_broker(url)
    worker = eo.Worker(broker, store=eo.connect("memory://"), name=unique_name)
    returned: list[float] = []

    @worker.handler(unique_name)
    async def handle(message: eo.Message[Any]) -> None:
        assert unsettled() == 1
        returned.append(time.monotonic())

    delays = []
    async with serving(worker):
        await until(lambda: worker.consumers)
        for number in range(5):
            await asyncio.sleep(0.2)  # the fetch waits for messages
            await broker.apublish(unique_name, [eo.Message(type="paid", data=number)])
            await until(lambda: len(returned) == number + 1)  # noqa: B023
            await until(lambda: unsettled() == 0)
            delays.append(time.monotonic() - returned[-1])
    await broker.aclose()
    assert median(delays) < LONGEST_S, delays


class KeepingConsumer:
    """Keeps acks until it is flushed. A flush takes ``slow`` seconds, and the first ``failing`` ones fail."""

    def __init__(self, slow: float = 0.0, failing: int = 0) -> None:
        self.slow, self.failing = slow, failing
        self.kept: list[Delivery] = []
        self.sent: list[str] = []

    def buffer_acks(self, deliveries: Sequence[Delivery]) -> None:
        self.kept += deliveries

    async def flush(self) -> None:
        if self.failing:
            self.failing -= 1
            raise BrokerUnavailable("for a moment")
        sending, self.kept = self.kept, []
        await asyncio.sleep(self.slow)
        self.sent += [delivery.packet.id for delivery in sending]


def settler_of(consumer: Any) -> DeliverySettler:
    """A settler during a fetch that does not end: only the grace of 20 ms makes it flush."""
    settler = DeliverySettler("orders", "billing", consumer, events=Events(), tracer=None)
    settler.fetching = True
    return settler


def delivery(id: str) -> Delivery:
    return Delivery(packet=Packet(body=b"", id=id), queue="orders", attempt=1)


async def test_f82_an_ack_during_a_slow_flush_is_sent_by_the_next_one() -> None:
    consumer = KeepingConsumer(slow=0.1)
    settler = settler_of(consumer)
    async with running(settler.run()):
        settler.ack([delivery("1")])
        await until(lambda: consumer.kept == [] and settler._grace is None)  # its flush is under way
        settler.ack([delivery("2")])
        await until(lambda: consumer.sent == ["1", "2"])


async def test_f82_a_flush_that_failed_is_repeated_without_another_ack() -> None:
    consumer = KeepingConsumer(failing=1)
    settler = settler_of(consumer)
    async with running(settler.run()):
        settler.ack([delivery("1")])
        await until(lambda: consumer.sent == ["1"])


@asynccontextmanager
async def running(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
