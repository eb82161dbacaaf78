"""One queue of a broker under test, and what several brokers' tests do with it."""

import asyncio
import contextlib
import subprocess
import sys
from typing import Any

from effectonce.contracts import BrokerBackend, Delivery, Packet
from effectonce.errors import BrokerUnavailable


class QueueUnderTest:
    """One queue with its publisher; consumers and dead letters are opened when asked for, and closed with it."""

    def __init__(self, backend: BrokerBackend, queue: str) -> None:
        self.backend = backend
        self.queue = queue
        self.publisher: Any = backend.publisher()
        self._opened: list[Any] = [self.publisher]

    async def publish(self, *bodies: bytes) -> None:
        packets = [Packet(body=body, id=f"id-{body.decode()}") for body in bodies]
        assert not any(await self.publisher.publish(self.queue, packets))

    async def consumer(self, prefetch: int = 50) -> Any:
        await self.backend.declare(self.queue, group="g")
        consumer = self.backend.consumer(self.queue, group="g", prefetch=prefetch)
        self._opened.append(consumer)
        return consumer

    def dead_letters(self) -> Any:
        dead_letters = self.backend.dead_letters(self.queue, group="g")
        self._opened.append(dead_letters)
        return dead_letters

    async def close(self) -> None:
        for opened in self._opened:
            await opened.close()


async def receive(consumer: Any, count: int) -> list[Delivery]:
    deliveries: list[Delivery] = []
    async with asyncio.timeout(60):
        while len(deliveries) < count:
            deliveries += await consumer.receive(count - len(deliveries), 1.0)
    return deliveries


class Traffic:
    """Publishes and consumes through every failure of the server (F59: a failover), until `stop`; then receives the
    last confirmed message."""

    def __init__(self, under_test: QueueUnderTest, consumer: Any) -> None:
        self.confirmed: set[str] = set()
        self.received: set[str] = set()
        self._under_test, self._consumer = under_test, consumer
        self._stopping = asyncio.Event()

    def start(self, tasks: asyncio.TaskGroup) -> None:
        tasks.create_task(self._publish())
        tasks.create_task(self._consume())

    def stop(self) -> None:
        self._stopping.set()

    async def _publish(self) -> None:
        number = 0
        while not self._stopping.is_set():
            packets = [Packet(body=b"x" * 200, id=f"{number + n}") for n in range(10)]
            with contextlib.suppress(BrokerUnavailable):
                outcomes = await self._under_test.publisher.publish(self._under_test.queue, packets)
                self.confirmed.update(p.id for p, error in zip(packets, outcomes, strict=True) if error is None)
                number += 10
            await asyncio.sleep(0.005)

    async def _consume(self) -> None:
        while not (self._stopping.is_set() and self.received >= self.confirmed):
            try:
                for delivery in await self._consumer.receive(20, 0.3):
                    self.received.add(delivery.packet.id)
                    await self._consumer.ack([delivery])
            except BrokerUnavailable as error:
                await asyncio.sleep(min(error.retry_after, 0.3))


#: A program that never closes its broker.
UNCLOSED_BROKER = """
import sys
import effectonce as eo

broker = eo.connect_broker(sys.argv[1])
broker.declare(sys.argv[2])
broker.publish(sys.argv[2], eo.Message(data=1))
print("published")
"""


def assert_exits_silently(url: str, queue: str) -> None:
    """A program that leaves its broker open ends without tracebacks of the driver."""
    program = [sys.executable, "-W", "ignore", "-c", UNCLOSED_BROKER, url, queue]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "published\n", "")
