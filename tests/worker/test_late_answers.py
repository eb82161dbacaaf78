"""What comes too late for a worker under leases: a grant after its end, a turn that another consumer has by now."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

import effectonce as eo
from effectonce.contracts import Delivery
from effectonce.record import Batchable, Claim, Reply

from .bench import Bench, FaultyPort, Watched, paid, serving, until


async def test_a_claim_that_is_granted_after_the_drain_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store was slow and the worker has stopped: the next one must not wait for a lease that nobody uses, nor count
    an attempt that nobody made."""
    bench, run, answering = Bench(), FaultyPort.run, asyncio.Event()
    claims: list[Batchable] = []
    runs: list[str] = []

    async def run_slowly(port: FaultyPort, batch: Sequence[Batchable]) -> Sequence[Reply]:
        new = [op for op in batch if isinstance(op, Claim)]
        claims.extend(new)
        if new:
            await answering.wait()
        return await run(port, batch)

    async def answer_when_closed() -> None:
        executor = worker.consumers[0].executor
        await until(lambda: executor._closed)  # type: ignore[attr-defined]
        answering.set()

    monkeypatch.setattr(FaultyPort, "run", run_slowly)
    worker, message = bench.worker(drain="10ms"), paid(1)
    worker.handler("orders", scope="books")(lambda message: runs.append(message.id))
    async with serving(worker):
        await bench.send("orders", message)
        await until(lambda: claims)
        answers = asyncio.create_task(answer_when_closed())
    await answers
    record = bench.store.get("books", message.id)
    assert record is not None
    assert (record.state, record.attempts, runs) == ("free", 0, [])
    assert bench.noted == [("nack", message.id, 0.0)]


async def test_what_the_broker_has_given_away_meanwhile_is_not_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """F54: its new consumer runs it. Here it is neither settled nor held against those behind it."""
    bench = Bench()
    worker = bench.worker(prefetch=10)
    go, started, runs = threading.Event(), threading.Event(), list[int]()
    first, given_away, last = paid(1), paid(2, ordering_key="k"), paid(3, ordering_key="k")

    @worker.handler("orders", scope="books", concurrency=1)
    def note(message: eo.Message[dict[str, int]]) -> None:
        runs.append(message.data["order"])
        started.set()
        assert go.wait(60)

    async def extend(consumer: Watched, deliveries: Sequence[Delivery], seconds: float) -> list[bool]:
        return [delivery.packet.id != given_away.id for delivery in deliveries]

    monkeypatch.setattr(Watched, "extend", extend)
    async with serving(worker):
        await bench.send("orders", first)
        await until(started.is_set)
        await bench.send_unordered("orders", given_away, last)
        await until(lambda: worker.consumers[0].received == 3)
        await worker.consumers[0].extend()
        go.set()
        await until(lambda: bench.count("ack") == 2)
    assert runs == [1, 3]
    assert [(what, id) for what, id, _ in bench.noted] == [("ack", first.id), ("ack", last.id)]
    assert bench.store.get("books", given_away.id) is None
