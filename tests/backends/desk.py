"""One queue of a broker under test, and words for what is done with it."""

import asyncio
import contextlib
import subprocess
import sys
from typing import Any

from effectonce.contracts import BrokerBackend, Delivery, Packet
from effectonce.errors import BrokerUnavailable


class Desk:
    """One queue, and what a test does with it."""

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

    def dead(self) -> Any:
        letters = self.backend.dead_letters(self.queue, group="g")
        self._opened.append(letters)
        return letters

    async def close(self) -> None:
        for each in self._opened:
            await each.close()


async def receive(consumer: Any, count: int) -> list[Delivery]:
    found: list[Delivery] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            found += await consumer.receive(count - len(found), 1.0)
    return found


class Traffic:
    """Publishing and consuming that go on whatever becomes of the server (F59), until `stop`; then what was confirmed
    is received to the last."""

    def __init__(self, desk: Desk, consumer: Any) -> None:
        self.confirmed: set[str] = set()
        self.received: set[str] = set()
        self._desk, self._consumer = desk, consumer
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
                outcomes = await self._desk.publisher.publish(self._desk.queue, packets)
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


#: Its broker is never closed.
CARELESS = """
import sys
import effectonce as eo

broker = eo.connect_broker(sys.argv[1])
broker.declare(sys.argv[2])
broker.publish(sys.argv[2], eo.Message(data=1))
print("published")
"""


def ends_without_a_word(url: str, queue: str) -> None:
    """What a careless program leaves open is no reason for pages of tracebacks in its last moment."""
    program = [sys.executable, "-W", "ignore", "-c", CARELESS, url, queue]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "published\n", "")
