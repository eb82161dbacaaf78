"""F20: what takes its process down is counted before it runs, runs alone, and is parked before the third process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import effectonce as eo
from effectonce.core.guarded_call import begin
from effectonce.record import Batchable, Claim, Settlement
from effectonce.testing import ManualClock
from effectonce.worker import quarantine

from .bench import Bench, paid, serving, until

SCOPE = "orders/*/billing"


class Mortal:
    """Workers on one clock that die, one after another, without a word: their claims lapse, nothing is released."""

    def __init__(self, **options: Any) -> None:
        self.clock = ManualClock()
        self.bench = Bench(self.clock, ack_window=60.0)
        self.options = {"lease": "10s", **options}
        self.started: list[list[int]] = []  # by process, the orders that were running when it died or ended
        self.done: list[int] = []

    async def live(self, poison: int, until_done: int) -> bool:
        """One process: True if it died over the poison, False when ``until_done`` messages are done or dead."""
        store = eo.Store(self.bench.store.runtime.backend, sweep_every=None)
        worker = self.bench.worker(store=store)
        died = asyncio.Event()
        running: list[int] = []
        self.started.append(running)

        @worker.handler("orders", **self.options)
        async def charge(message: eo.Message[dict[str, int]]) -> None:
            order = message.data["order"]
            running.append(order)
            if order == poison:
                await asyncio.sleep(0.05)  # those beside it have begun, too
                died.set()
                await asyncio.Event().wait()
            await asyncio.sleep(0.1)
            running.remove(order)
            self.done.append(order)

        task = asyncio.create_task(worker.serve())
        wait = asyncio.create_task(died.wait())
        ended = asyncio.create_task(until(lambda: len(self.done) + self.bench.count("dead") >= until_done))
        await asyncio.wait([wait, ended], return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            wait.cancel()
            worker.stop()
            await task
            return False
        ended.cancel()
        # kill -9: nothing more is said, to the store or to the broker.
        self.bench.store_backend.kill_ports()
        for each in asyncio.all_tasks() - {asyncio.current_task()}:
            each.cancel()
        await asyncio.sleep(0.01)
        self.clock.advance("61s")
        return True


async def test_f20_poison_is_parked_before_it_ends_a_third_process_and_its_batch_mates_are_not() -> None:
    mortal = Mortal()
    await mortal.bench.send("orders", *(paid(number) for number in range(6)))
    assert await mortal.live(poison=3, until_done=6)
    assert sorted(mortal.started[0]) == [0, 1, 2, 3, 4, 5], "the first time it runs beside its batch-mates"
    deaths = 1
    while await mortal.live(poison=3, until_done=6):
        deaths += 1
        assert mortal.started[-1] == [3], "then it runs alone"
    assert deaths == 2
    assert sorted(mortal.done) == [0, 1, 2, 4, 5]
    dlq = mortal.bench.dead(with_handler(mortal), "orders")
    (dead,) = await dlq.alist()
    assert (dead.cause.why, dead.cause.attempts) == ("poison", 2)
    assert dead.message is not None
    assert dead.message.data == {"order": 3}


def with_handler(mortal: Mortal) -> eo.Worker:
    worker = mortal.bench.worker(store=eo.Store(mortal.bench.store.runtime.backend, sweep_every=None))

    @worker.handler("orders", **mortal.options)
    async def charge(message: eo.Message[Any]) -> None:
        mortal.done.append(message.data["order"])

    return worker


async def test_f20_a_duplicate_of_parked_poison_is_parked_too_and_a_redrive_runs_it_alone() -> None:
    mortal = Mortal()
    message = paid(3)
    await mortal.bench.send("orders", message)
    while await mortal.live(poison=3, until_done=1):
        pass
    mended = with_handler(mortal)
    async with serving(mended):
        await mortal.bench.send("orders", message)
        await until(lambda: mortal.bench.count("nack") >= 1)  # its lease has not lapsed yet
        mortal.clock.advance("11s")
        await until(lambda: mortal.bench.count("dead") == 2)
        assert mortal.done == []
        mortal.clock.advance("11s")
        assert [each.fate for each in await mortal.bench.dead(mended, "orders").aredrive(limit=1)] == ["resume"]
        await until(lambda: mortal.done == [3])


async def test_others_do_not_wait_for_ever_for_one_that_runs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine, "LONGEST_WAIT_S", 0.05)
    mortal = Mortal()
    await mortal.bench.send("orders", paid(3))
    assert await mortal.live(poison=3, until_done=1)
    worker = mortal.bench.worker(store=eo.Store(mortal.bench.store.runtime.backend, sweep_every=None))
    alone, go = asyncio.Event(), asyncio.Event()
    done: list[int] = []

    @worker.handler("orders", **mortal.options)
    async def charge(message: eo.Message[dict[str, int]]) -> None:
        if message.data["order"] == 3:
            alone.set()
            await go.wait()
        done.append(message.data["order"])

    async with serving(worker):
        await alone.wait()
        await mortal.bench.send("orders", paid(4))
        await until(lambda: done == [4])
        go.set()
        await until(lambda: done == [4, 3])


async def test_an_attempt_that_raised_is_no_reason_to_run_alone() -> None:
    bench = Bench()
    worker = bench.worker()
    together: set[int] = set()
    seen: list[int] = []

    @worker.handler("orders", retry=eo.Retry(3, first="1ms"))
    async def charge(message: eo.Message[dict[str, int]]) -> None:
        if eo.current().attempt == 1:
            raise ValueError
        together.add(message.data["order"])
        await asyncio.sleep(0.3)
        seen.append(len(together))
        together.discard(message.data["order"])

    async with serving(worker):
        await bench.send("orders", *(paid(number) for number in range(4)))
        await until(lambda: bench.count("ack") == 4)
    assert max(seen) > 1


@pytest.mark.parametrize("lost_reply", ["release", "claim"])
async def test_f20_a_suspect_that_loses_a_reply_of_the_store_is_not_counted_as_another_crash(lost_reply: str) -> None:
    """Claimed again under another owner it would be in progress until its lease lapses, and be poison then."""
    bench = Bench()
    worker = bench.worker()
    attempts: list[int] = []
    lost: list[Batchable] = []
    sent: list[str] = []

    @worker.handler("orders", fingerprint=False, lease="1s")
    async def charge(message: eo.Message[Any]) -> None:
        attempts.append(eo.current().attempt)

    def lose_the_reply(op: Batchable) -> None:
        release = isinstance(op, Settlement) and op.refund
        sent.append("release" if release else type(op).__name__)
        second_claim = sent == ["Claim", "release", "Claim"]
        if not lost and (release if lost_reply == "release" else second_claim):
            lost.append(op)
            raise eo.StoreUnavailable("it is away for a moment")

    message = paid()
    died = begin.prepare_run(bench.store.runtime, worker.routes[0].policy, message.id, b"").claim_request()
    assert isinstance(died, Claim)
    died.lease_us = 10_000
    await bench.store_backend.async_port().run((died,))
    await asyncio.sleep(0.02)
    if lost_reply == "release":
        bench.store_backend.before = lose_the_reply  # it is not applied
    else:
        bench.store_backend.after = lose_the_reply
    async with serving(worker):
        await bench.send("orders", message)
        await until(lambda: bench.count("ack") + bench.count("dead") == 1)
    assert len(lost) == 1
    assert (attempts, bench.count("dead"), bench.count("nack")) == ([2], 0, 0)
