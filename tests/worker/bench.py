"""A workbench for workers: queues and records in memory, on one clock that may be moved by hand, all of it watched."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec import structs

import effectonce as eo
from effectonce.backends.memory.broker import MemoryBrokerBackend
from effectonce.backends.memory.store import MemoryPort, MemoryStoreBackend
from effectonce.contracts import Clock, Delivery, Packet
from effectonce.record import Batchable, Reply


async def until(condition: Callable[[], Any], seconds: float = 15.0) -> None:
    """Wait for ``condition``; a machine that is busy may take its time."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not condition():
        assert loop.time() < deadline, "it did not come to pass"
        await asyncio.sleep(0.002)


@asynccontextmanager
async def serving(*workers: eo.Worker) -> AsyncIterator[None]:
    """The workers at work; stopped, and what ended them raised, at the end."""
    tasks = [asyncio.create_task(worker.serve()) for worker in workers]
    try:
        yield
    finally:
        for worker in workers:
            worker.stop()
        await asyncio.wait_for(asyncio.gather(*tasks), 20)


class Watched:
    """A consumer of the memory broker that notes what is asked of it, and may be told to fail."""

    def __init__(self, bench: Bench, inner: Any) -> None:
        self._bench = bench
        self._inner = inner

    async def receive(self, limit: int, wait: float) -> Sequence[Delivery]:
        if self._bench.broken:
            raise self._bench.broken.pop(0)
        found: Sequence[Delivery] = await self._inner.receive(limit, min(wait, 0.05))
        if not self._bench.backend.capabilities.counts_attempts:
            for delivery in found:
                delivery.attempt = 0
        return found

    async def ack(self, deliveries: Sequence[Delivery]) -> Sequence[bool]:
        self._bench.note("ack", deliveries)
        answers: Sequence[bool] = await self._inner.ack(deliveries)
        return answers

    async def nack(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> Sequence[bool]:
        self._bench.note("nack", deliveries, delay)
        answers: Sequence[bool] = await self._inner.nack(deliveries, delay)
        return answers

    async def dead_letter(self, delivery: Delivery, headers: Any) -> bool:
        answer: bool = await self._inner.dead_letter(delivery, headers)
        self._bench.note("dead", [delivery])
        return answer

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> Sequence[bool]:
        self._bench.note("extend", deliveries)
        answers: Sequence[bool] = await self._inner.extend(deliveries, seconds)
        return answers

    async def flush(self) -> None:
        await self._inner.flush()

    async def close(self) -> None:
        await self._inner.close()


def give_back_in_disorder(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a broker that counts delays in tenths of a second, and delivers what was delayed the last first."""
    nack, receive = Watched.nack, Watched.receive

    async def nack_coarsely(self: Watched, deliveries: Sequence[Delivery], delay: float = 0.0) -> Sequence[bool]:
        return await nack(self, deliveries, math.ceil(delay * 10) / 10)

    async def receive_backwards(self: Watched, limit: int, wait: float) -> Sequence[Delivery]:
        found = await receive(self, limit, wait)
        return sorted(found, key=lambda each: each.attempt > 1 and -each.handle.key)

    monkeypatch.setattr(Watched, "nack", nack_coarsely)
    monkeypatch.setattr(Watched, "receive", receive_backwards)


class Backend(MemoryBrokerBackend):
    """The memory broker with watched consumers."""

    bench: Bench

    def consumer(self, queue: str, *, group: str, prefetch: int) -> Any:
        return Watched(self.bench, super().consumer(queue, group=group, prefetch=prefetch))

    async def check(self, queue: str, *, group: str) -> None:
        """As a broker whose queues have to be declared first."""
        assert group in self.queues.queue(queue).groups, f"queue {queue} was not declared"


class StoreBackend(MemoryStoreBackend):
    """The memory store with async ports that can be made to fail."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock=clock)
        self.ports: list[FaultyPort] = []
        #: Called before and after each operation. What it raises is the operation's reply.
        self.before: Callable[[Batchable], None] = lambda op: None
        self.after: Callable[[Batchable], None] = lambda op: None

    def async_port(self) -> MemoryPort:
        self.ports.append(FaultyPort(self))
        return self.ports[-1]

    def kill_ports(self) -> None:
        """Let the ports that are open now hang for ever, as those of a process that was killed."""
        for port in self.ports:
            port.hangs = True


class FaultyPort(MemoryPort):
    hangs = False

    async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
        if self.hangs:
            await asyncio.get_running_loop().create_future()
        return [await self._run_one(op) for op in batch]

    async def _run_one(self, op: Batchable) -> Reply:
        backend: StoreBackend = self._backend  # type: ignore[assignment]
        try:
            backend.before(op)
            (reply,) = await super().run((op,))
            backend.after(op)
        except eo.StoreUnavailable as error:
            return error
        return reply


class Bench:
    """One broker, one store, and what happened between them. ``on_ack`` sees every delivery as it is acked."""

    def __init__(self, clock: Clock | None = None, **options: Any) -> None:
        self.backend = Backend(clock=clock, **options)
        self.backend.bench = self
        # Order per key is the worker's own work here: `send_unordered` leaves the broker without the keys.
        self.backend.capabilities = structs.replace(self.backend.capabilities, ordering="queue")
        self.broker = eo.Broker(self.backend)
        self.store_backend = StoreBackend(clock)
        self.store = eo.Store(self.store_backend, sweep_every=None)
        self.events: list[eo.Event] = []
        self.store.add_hook(self.events.append)
        self.noted: list[tuple[str, str, float]] = []  # what, message id, delay
        self.on_ack: Callable[[Delivery], None] = lambda delivery: None
        self.broken: list[Exception] = []

    def count_nothing(self) -> None:
        """As by Kafka: the broker does not say how often it has delivered a message."""
        self.backend.capabilities = structs.replace(self.backend.capabilities, counts_attempts=False)

    def note(self, what: str, deliveries: Sequence[Delivery], delay: float = 0.0) -> None:
        for delivery in deliveries:
            if what == "ack":
                self.on_ack(delivery)
            self.noted.append((what, delivery.packet.id, delay))

    def count(self, what: str) -> int:
        return sum(each == what for each, _, _ in self.noted)

    def delays(self) -> list[float]:
        return [delay for what, _, delay in self.noted if what == "nack"]

    def worker(self, **options: Any) -> eo.Worker:
        return eo.Worker(self.broker, **{"store": self.store, "name": "billing", "drain": "5s", **options})

    async def send(self, queue: str, *messages: eo.Message[Any]) -> None:
        await self.broker.apublish(queue, messages)

    async def send_unordered(self, queue: str, *messages: eo.Message[Any]) -> None:
        """As by a broker that keeps no order: all are delivered, whatever their ordering keys."""
        packets = [structs.replace(self.broker.envelope.encode(message), ordering_key=None) for message in messages]
        await self.backend.publisher().publish(queue, packets)

    async def send_raw(self, queue: str, body: bytes, **headers: str) -> None:
        packet = Packet(body=body, headers=headers, id="raw")
        await self.backend.publisher().publish(queue, [packet])

    def left(self, queue: str, group: str = "billing") -> int:
        """What the queue still holds, delivered or not."""
        return len(self.backend.queues.queue(queue).groups[group].messages)

    def dead(self, worker: eo.Worker, queue: str) -> eo.DeadLetterQueue:
        return eo.DeadLetterQueue(worker, queue)


def paid(number: int = 1, **options: Any) -> eo.Message[dict[str, Any]]:
    return eo.Message(**{"type": "order.paid", "data": {"order": number}, **options})
