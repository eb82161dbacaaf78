"""Interrupted sagas: processes that die in a step, late threads, recovery, and migrations."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

import effectonce as eo
from effectonce.backends.memory.store import MemoryStoreBackend
from effectonce.core.run_sync import run_sync
from effectonce.core.store_clients import release_with_refund
from effectonce.sagas.recovery import ResumeCounts
from effectonce.testing import ManualClock
from effectonce.testing.fault_points import FaultInjectingBackend, FaultInjector, Killed

from .shop import Order, Shop, killed_after, order_saga, raising

ORDER = Order("o-1")


def started_again(store: eo.Store, shop: Shop) -> None:
    order_saga(store, shop).start("o-1", ORDER)


def run_by_another_release(store: eo.Store, shop: Shop) -> None:
    other = eo.Saga("order", eo.Store(store.runtime.backend, sweep_every=None), input=Order, version="2")
    other.step(name="reserve")(lambda order: None)
    assert other.resume() == ResumeCounts(refused=1)


def claimed_and_given_back(store: eo.Store, shop: Shop) -> None:
    """As the store does for a caller that was cancelled just when its claim was granted."""
    run, client = order_saga(store, shop).prepare_run("o-1"), store.runtime.sync_client()
    claim: Any = run.claim_request()
    assert run_sync(client.settle(release_with_refund(claim, run_sync(client.claim(claim)))))


@pytest.mark.parametrize("between", [started_again, run_by_another_release, claimed_and_given_back])
def test_an_interrupted_step_is_not_forgotten(between: Any) -> None:
    """F49: charged, killed, looked at by somebody else, and then turned around: the charge must not be overlooked."""
    backend, shop = FaultInjectingBackend(), Shop()
    store: Any = eo.Store(backend, sweep_every=None)
    killed_after("charge", store, backend, shop)
    between(store, shop)
    saga = order_saga(store, shop)
    with pytest.raises(eo.InDoubt, match="it was started, and whether it happened is not known"):
        saga.compensate("o-1")
    saga.resolve("o-1", "done", result={"charge": "ch", "amount": 4200})
    assert saga.resume() == ResumeCounts(failed=1)
    assert shop.effects == ["reserve", "charge", "refund", "release"]


def test_a_step_that_may_have_happened_is_not_dropped_by_a_migration() -> None:
    backend, shop = FaultInjectingBackend(), Shop()
    store: Any = eo.Store(backend, sweep_every=None)
    killed_after("charge", store, backend, shop)
    new = eo.Saga("order", eo.Store(backend, sweep_every=None), input=Order, version="2")
    for name in ("reserve", "ship"):
        new.step(name=name)(lambda order: None)
    new.migrate("1", {})
    with pytest.raises(eo.SagaChanged, match="charge has started and is not a step any more"):
        new.run("o-1", ORDER)


def test_an_input_that_no_longer_reads_is_refused_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    """F07."""
    store = eo.connect("memory://", sweep_every=None)
    old: eo.Saga[Any] = eo.Saga("order", store, input=dict)
    old.step(name="one")(_nothing)
    old.start("bad", {"id": 7})
    old.start("good", {"id": "o-1"})
    new = eo.Saga("order", store, input=Order)
    new.step(name="one")(_nothing)
    assert new.resume() == ResumeCounts(done=1, refused=1)
    assert "define an input that fits both" in caplog.text
    assert (new.get("bad").state, new.get("good").state) == ("free", "done")  # type: ignore[union-attr]


def test_a_log_that_cannot_be_read_is_refused_and_the_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """F07, F38: written by a newer release, say."""
    store = eo.connect(f"sqlite:///{tmp_path}/shop.db", sweep_every=None)
    saga = eo.Saga("order", store, input=Order)
    saga.step(name="one")(_nothing)
    saga.start("bad", ORDER)
    saga.start("good", ORDER)
    with closing(sqlite3.connect(tmp_path / "shop.db")) as conn, conn:
        conn.execute("UPDATE effectonce_records SET note = x'00' WHERE key = 'bad'")
    assert saga.resume() == ResumeCounts(done=1, refused=1)
    assert "the log of a saga cannot be read" in caplog.text


def _nothing(order: Any) -> None:
    return None


def test_a_bounded_resume_gets_to_all_of_them() -> None:
    store, shop = eo.connect("memory://", sweep_every=None), Shop()
    saga = order_saga(store, shop)
    shop.at["charge"] = raising(eo.OutcomeUnknown("?", 0.0))
    for number in range(9):
        saga.start(f"o-{number}", ORDER)
    for _ in range(3):
        assert saga.resume(limit=3) == ResumeCounts(later=3)
    assert len(set(shop.done)) == 9
    shop.at.clear()
    assert [saga.resume(limit=5).done for _ in range(2)] == [5, 4]


def test_a_bounded_resume_that_is_stopped_begins_there_the_next_time() -> None:
    store = eo.connect("memory://", sweep_every=None)
    saga, done = eo.Saga("order", store, input=int), list[int]()
    saga.step(name="one")(done.append)
    for number in range(9):
        saga.start(f"o-{number}", number)
    assert saga.resume(limit=6, stop=lambda: len(done) >= 2) == ResumeCounts(done=2)
    assert saga.resume(limit=2) == ResumeCounts(done=2)
    assert done == [0, 1, 2, 3]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_child_that_returns_from_a_step_goes_no_further(tmp_path: Path) -> None:
    """It has all that its parent has, the lease too; but the parent continues the saga."""
    store = eo.connect(f"sqlite:///{tmp_path}/fork.db", sweep_every=None)
    saga = eo.Saga("forks", store, input=Order)
    parent, charged = os.getpid(), tmp_path / "charged"

    @saga.step()
    def reserve(order: Order) -> None:
        child = os.fork()
        if child:
            children.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    @saga.step()
    def charge(order: Order) -> None:
        with charged.open("a") as file:
            file.write("1")

    children: list[int] = []
    try:
        saga.run("o-1", ORDER)
    except BaseException as error:
        if os.getpid() == parent:
            raise
        os._exit(3 if isinstance(error, eo.LeaseLost) else 4)
    if os.getpid() != parent:
        os._exit(5)
    assert (children, charged.read_text()) == ([3], "1")
    store.close()


async def test_nobody_runs_beside_a_thread_that_outlives_its_caller() -> None:
    clock = ManualClock()
    store: Any = eo.Store(MemoryStoreBackend(clock=clock), sweep_every=None)
    saga = eo.Saga("slow", store, input=Order)
    entered, go, calls = threading.Event(), threading.Event(), []

    @saga.step()
    def charge(order: Order) -> None:
        calls.append(1)
        entered.set()
        go.wait(30)

    task = asyncio.create_task(saga.arun("o-1", ORDER))
    await asyncio.to_thread(entered.wait, 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for _ in range(4):  # its lease is kept for it
        clock.advance("20s")
        store.runtime.heartbeat.beat()
        assert await saga.aresume() == ResumeCounts()
    go.set()
    while store.runtime.leased_runs:  # noqa: ASYNC110 - it is left by a thread
        await asyncio.sleep(0.001)
    clock.advance("31s")
    assert await saga.aresume() == ResumeCounts(done=1)
    assert len(calls) == 2


def test_f49_a_late_step_cannot_charge_what_was_turned_around() -> None:
    """It was slow before it sent anything: the operator said "not done", and then it woke up."""
    store = eo.connect("memory://", sweep_every=None)
    intents = eo.Intents(store, scope="billing")
    go, ended = threading.Event(), threading.Event()
    sent: list[str] = []
    late: list[BaseException] = []

    @intents.operation("stripe", "charge")
    def stripe(intent: eo.Intent[Order]) -> str:
        sent.append(intent.key)
        return "ch_1"

    saga = eo.Saga("slow", store, input=Order)

    @saga.step(timeout="10ms", grace="1ms")
    def charge(order: Order) -> str:
        go.wait(30)
        try:
            return str(stripe(order, key=eo.current().key))
        except eo.LeaseLost as error:
            late.append(error)
            raise
        finally:
            ended.set()

    with pytest.raises(eo.InDoubt):
        saga.run("o-1", ORDER)
    saga.resolve("o-1", "not_done")
    assert saga.resume() == ResumeCounts(failed=1)
    go.set()
    assert ended.wait(30)
    assert (sent, len(late)) == ([], 1)
    assert "has timed out" in str(late[0])


def test_an_intent_of_a_saga_that_has_turned_around_is_never_sent() -> None:
    """429, so nothing was charged, and the order is given up. A recovery must not charge it after all."""
    clock = ManualClock()
    store: Any = eo.Store(MemoryStoreBackend(clock=clock), sweep_every=None)
    intents = eo.Intents(store, scope="billing")
    sent: list[str] = []

    @intents.operation("stripe", "charge")
    def stripe(intent: eo.Intent[Order]) -> str:
        sent.append(intent.key)
        raise httpx.HTTPStatusError("429", request=_REQUEST, response=httpx.Response(429))

    saga = eo.Saga("order", store, input=Order)

    @saga.step()
    def charge(order: Order) -> str:
        return str(stripe(order, key=eo.current().key))

    with pytest.raises(eo.SagaFailed, match="NotExecuted"):
        saga.run("o-1", ORDER)
    clock.advance("1h")
    assert intents.recover().later == 1
    assert sent == ["order/o-1/charge"]


_REQUEST = httpx.Request("POST", "https://api.example")


@pytest.mark.parametrize("tool", ["once", "intents"])
def test_what_a_step_did_is_remembered_as_long_as_its_saga(tool: str) -> None:
    """Done, killed before the saga recorded it, and resumed long after its own retention: it is not done again."""
    backend = FaultInjectingBackend()
    store: Any = eo.Store(backend, sweep_every=None)
    intents = eo.Intents(store, scope="billing")
    done: list[str] = []

    @intents.operation("stripe", "charge", retention="1h")
    def stripe(intent: eo.Intent[str]) -> str:
        done.append(intent.request)
        return "ch_1"

    @eo.once(store, scope="charges", key="order", retention="1h")
    def once(order: str) -> str:
        done.append(order)
        return "ch_1"

    saga = eo.Saga("order", store, input=Order, retention="30d")

    @saga.step()
    def charge(order: Order) -> str:
        result: str = once(order.id) if tool == "once" else stripe(order.id, key=eo.current().key)
        if deaths:
            backend.injector.killed = True
            raise deaths.pop()
        return result

    deaths = [Killed()]
    with pytest.raises(Killed):
        saga.run("o-1", ORDER)
    backend.injector = FaultInjector()
    backend.clock.advance("20d")
    store.purge()
    assert saga.resume() == ResumeCounts(done=1)
    assert done == ["o-1"]


@pytest.mark.parametrize("resumed", [0, 1])
def test_f12_the_clock_of_the_process_that_began_it_makes_no_step_younger(
    monkeypatch: pytest.MonkeyPatch, resumed: int
) -> None:
    """Its clock was a month ahead, and it died in the first step; the second time, so did the one that went on."""
    backend, shop = FaultInjectingBackend(), Shop()
    store: Any = eo.Store(backend, sweep_every=None)
    with monkeypatch.context() as ahead:
        ahead.setattr(type(store.runtime), "now", lambda self: backend.clock.now() + 30 * 86_400_000_000)
        killed_after("reserve", store, backend, shop)
    if resumed:
        backend.clock.advance("16d")
        run, client = order_saga(store, shop).prepare_run("o-1"), store.runtime.sync_client()
        run_sync(client.claim(run.claim_request()))  # and it died at once
    backend.clock.advance("31d")
    assert order_saga(store, shop).resume() == ResumeCounts(in_doubt=1)
    assert shop.calls == ["reserve"]


def test_two_definitions_of_one_name_on_one_store_are_refused() -> None:
    store = eo.connect("memory://", sweep_every=None)
    first: eo.Saga[Any] = eo.Saga("order", store, input=Order)
    first.step(name="one")(_nothing)
    second: eo.Saga[Any] = eo.Saga("order", store, input=Order)
    with pytest.raises(eo.ScopeTaken, match="saga/order"):
        second.step(name="one")(lambda order: None)
    assert second.steps == {}


def test_secrets_in_the_url_of_an_error_are_not_written_down() -> None:
    """F66."""
    store, shop = eo.connect("memory://", sweep_every=None), Shop()
    saga = order_saga(store, shop)
    shop.at["charge"] = raising(ValueError("POST https://shop:canary@api.example/v1?key=canary failed"))
    with pytest.raises(eo.SagaFailed) as told:
        saga.run("o-1", ORDER)
    record = saga.get("o-1")
    assert record is not None
    assert "api.example/v1" in str(told.value)
    assert "canary" not in str(told.value) + repr(msgspec.to_builtins(saga.log(record))) + repr(record)
