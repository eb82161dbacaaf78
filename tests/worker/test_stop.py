"""What a worker leaves behind when it stops: no lease that is kept for nothing, no task, no timer."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Sequence
from typing import Any

import pytest

import effectonce as eo
from effectonce.contracts import Delivery
from effectonce.record import Batchable, Claim, Reply

from .bench import Bench, FaultyPort, Watched, paid, serving, until

tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="none")


class Gate:
    """Operations of a store that wait: those for which ``holds`` is true, until ``open`` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, holds: Any) -> None:
        self.open = asyncio.Event()
        self.error: Exception | None = None
        self.waiting = 0
        run = FaultyPort.run

        async def run_gated(port: FaultyPort, batch: Sequence[Batchable]) -> Sequence[Reply]:
            if any(holds(op) for op in batch):
                self.waiting += 1
                await self.open.wait()
                self.waiting -= 1
                if self.error is not None:
                    raise self.error
            return await run(port, batch)

        monkeypatch.setattr(FaultyPort, "run", run_gated)


async def test_handlers_see_the_context_that_serve_was_called_in() -> None:
    bench = Bench()
    worker = bench.worker()
    seen: list[str] = []

    @worker.handler("orders")
    async def charge(message: eo.Message[Any]) -> None:
        seen.append(tenant.get())
        tenant.set("of a message")

    @worker.handler("refunds")
    def refund(message: eo.Message[Any]) -> None:
        seen.append(tenant.get())

    token = tenant.set("of the worker")
    async with serving(worker):
        await bench.send("orders", paid(1), paid(2))
        await until(lambda: len(seen) == 2)
        await bench.send("refunds", paid(3))
        await until(lambda: len(seen) == 3)
    tenant.reset(token)
    assert seen == ["of the worker"] * 3


@pytest.mark.parametrize("waiting", [True, False])
def test_a_worker_whose_loop_ends_gives_back_what_it_has(waiting: bool, caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    served: list[asyncio.Task[None]] = []
    runs: list[str] = []

    async def main() -> None:
        worker = bench.worker()

        @worker.handler("orders")
        async def charge(message: eo.Message[Any]) -> None:
            runs.append(message.id)
            await asyncio.sleep(0.001)
            if waiting:
                await asyncio.sleep(60)

        served.append(asyncio.create_task(worker.serve()))
        await bench.send("orders", *(paid(number) for number in range(200)))
        await until(lambda: len(runs) >= (10 if waiting else 200))

    asyncio.run(asyncio.wait_for(main(), 20))
    (task,) = served
    assert task.cancelled()
    assert not bench.store.runtime.leased_runs
    assert [record.message for record in caplog.records if record.name == "asyncio"] == []


async def test_a_success_that_the_store_has_not_answered_by_the_end_keeps_no_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    worker = bench.worker(drain="100ms")
    gate = Gate(monkeypatch, lambda op: not isinstance(op, Claim))
    gate.error = eo.StoreUnavailable("it is away")
    errors: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context))

    @worker.handler("orders")
    async def charge(message: eo.Message[Any]) -> None: ...

    async with serving(worker):
        await bench.send("orders", paid())
        await until(lambda: gate.waiting)
        worker.stop()
        asyncio.get_running_loop().call_later(0.5, gate.open.set)
    assert not bench.store.runtime.leased_runs
    await asyncio.sleep(0.3)  # longer than the first pause
    assert errors == []
    assert not bench.store.runtime.leased_runs
    assert bench.count("nack") == 1


async def test_a_pause_ends_with_its_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    worker = bench.worker(drain="10ms")
    errors: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context))

    def refuse(op: Batchable) -> None:
        if not isinstance(op, Claim):
            raise eo.StoreUnavailable("it is away")

    bench.store_backend.before = refuse

    @worker.handler("orders")
    async def charge(message: eo.Message[Any]) -> None: ...

    async with serving(worker):
        await bench.send("orders", paid())
        await until(lambda: len(bench.events) > 1)
    await asyncio.sleep(0.5)
    assert errors == []
    assert not bench.store.runtime.leased_runs


async def test_what_is_granted_while_the_worker_drains_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    worker = bench.worker(drain="300ms")
    first_runs = asyncio.Event()
    gate = Gate(monkeypatch, lambda op: isinstance(op, Claim) and first_runs.is_set())
    runs: list[int] = []

    @worker.handler("orders", concurrency=2)
    async def charge(message: eo.Message[Any]) -> None:
        runs.append(message.data["order"])
        first_runs.set()
        await asyncio.sleep(60)

    async with serving(worker):
        await bench.send("orders", paid(1))
        await first_runs.wait()
        await bench.send("orders", paid(2))
        await until(lambda: gate.waiting)
        worker.stop()
        await asyncio.sleep(0.05)
        gate.open.set()
    assert runs == [1]
    assert not bench.store.runtime.leased_runs
    assert sorted(record.state for record in bench.store.list().records) == ["free", "free"]
    assert bench.count("nack") == 2


async def test_f58_what_was_claimed_ahead_is_released_as_soon_as_the_worker_stops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another worker has it at once, as a first attempt, while the handlers of the first still run."""
    bench = Bench()
    worker = bench.worker(drain="1h")
    other = bench.worker(store=eo.Store(bench.store_backend, sweep_every=None))  # as in another process
    go = [asyncio.Event() for _ in range(6)]
    started, ended, attempts = list[int](), list[int](), list[tuple[int, int]]()
    gate = Gate(monkeypatch, lambda op: isinstance(op, Claim) and bool(ended))

    @worker.handler("orders", concurrency=2)
    async def charge(message: eo.Message[Any]) -> None:
        started.append(message.data["order"])
        await go[message.data["order"]].wait()
        ended.append(message.data["order"])

    @other.handler("orders")
    async def charge_elsewhere(message: eo.Message[Any]) -> None:
        attempts.append((message.data["order"], eo.current().attempt))

    await bench.send("orders", *(paid(number) for number in range(6)))
    task = asyncio.create_task(worker.serve())
    await until(lambda: len(started) == 2)
    go[0].set()
    await until(lambda: gate.waiting)
    go[1].set()  # one ends while the next is being claimed: it is worth while to claim ahead
    await until(lambda: len(ended) == 2)
    gate.open.set()
    await until(lambda: len(started) == 4 and bench.store.stats().counts["claimed"] == 4)

    worker.stop()
    async with serving(other):
        await until(lambda: len(attempts) == 2)
        assert sorted(attempts) == [(number, 1) for number in range(6) if number not in started]
        assert (task.done(), len(ended)) == (False, 2)
        assert bench.delays() == [0.0, 0.0]
    for event in go:
        event.set()
    await asyncio.wait_for(task, 60)
    assert len(started) == 4
    assert bench.count("ack") == 6


def run_stuck_handler(worker: eo.Worker) -> tuple[threading.Event, threading.Event]:
    """Give ``worker`` a handler that a drain cannot end. Returns what says that it runs, and what ends it."""
    running, go = threading.Event(), threading.Event()

    @worker.handler("orders")
    def charge(message: eo.Message[Any]) -> None:
        running.set()
        go.wait(20)

    return running, go


async def test_what_waits_behind_a_stuck_handler_goes_back_in_its_order() -> None:
    bench = Bench()
    worker = bench.worker(drain="10ms")
    running, go = run_stuck_handler(worker)
    messages = [paid(number, ordering_key="k") for number in range(20)]
    async with serving(worker):
        await bench.send_unordered("orders", *messages)
        await asyncio.to_thread(running.wait, 10)
    go.set()
    assert [id for what, id, _ in bench.noted if what == "nack"] == [message.id for message in messages]


async def test_what_another_consumer_has_by_now_is_not_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    worker = bench.worker(drain="10ms")
    running, go = run_stuck_handler(worker)
    messages = [paid(number, ordering_key="k") for number in range(3)]

    async def lose_second(self: Watched, deliveries: Sequence[Delivery], seconds: float) -> Sequence[bool]:
        return [delivery.packet.id != messages[1].id for delivery in deliveries]

    monkeypatch.setattr(Watched, "extend", lose_second)
    async with serving(worker):
        await bench.send_unordered("orders", *messages)
        await asyncio.to_thread(running.wait, 10)
        await worker.consumers[0].extend()
    go.set()
    assert [id for what, id, _ in bench.noted if what == "nack"] == [messages[0].id, messages[2].id]
