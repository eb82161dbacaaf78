"""Steps that take too long, event loops, and sweepers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

import effectonce as eo
from effectonce.sagas.recovery import ResumeCounts

from .shop import QUICK, Order, Shop, order_saga, part, raising, state

ORDER = Order("o-1")
T = TypeVar("T")


class Declined(Exception):
    pass


def in_a_loop(store: eo.Store, work: Coroutine[Any, Any, T]) -> T:
    async def closed() -> T:
        try:
            return await work
        finally:
            await store.aclose()

    return asyncio.run(closed())


# -- time


def slow_saga(store: eo.Store, shop: Shop, colour: str, grace: str, entered: Any, go: Any) -> eo.Saga[Order]:
    """``charge`` enters, and ends when it is let go."""
    saga = eo.Saga("slow", store, input=Order)

    @saga.step()
    def reserve(order: Order) -> str:
        return shop.do("reserve")

    @reserve.compensate(retry=QUICK)
    def release(order: Order) -> None:
        shop.do("release")

    if colour == "async":

        @saga.step(timeout="20ms", grace=grace)
        async def charge(order: Order) -> str:
            while not go.is_set():  # noqa: ASYNC110 - it is set by a thread
                await asyncio.sleep(0.001)
            entered.append(eo.current().lease_lost)
            return shop.do("charge")

    else:

        @saga.step(timeout="20ms", grace=grace)
        def charge(order: Order) -> str:
            go.wait(30)
            entered.append(eo.current().lease_lost)
            return shop.do("charge")

    @charge.compensate(retry=QUICK)
    def refund(order: Order, done: eo.Done) -> None:
        go.set()
        assert done[charge].startswith("charge-")
        shop.do("refund")

    return saga


def run_either(saga: eo.Saga[Order], colour: str) -> None:
    if colour == "sync":
        saga.run("o-1", ORDER)
    else:
        in_a_loop(saga.store, saga.arun("o-1", ORDER))


def when_turned(saga: eo.Saga[Any], then: Callable[[], None]) -> threading.Thread:
    """``then``, once the log says that the saga has turned around."""

    def watch() -> None:
        while (record := saga.get("o-1")) is None or saga.log(record).phase != "compensating":
            threading.Event().wait(0.005)
        then()

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


@pytest.mark.parametrize("colour", ["sync", "async", "thread"])
def test_f49_a_step_that_times_out_and_succeeds_late_is_compensated(store: eo.Store, shop: Shop, colour: str) -> None:
    entered: list[bool] = []
    go = threading.Event()
    saga = slow_saga(store, shop, colour, "30s", entered, go)
    watcher = when_turned(saga, go.set)
    with pytest.raises(eo.SagaFailed, match=r"at step charge: TimeoutError: no end within 20ms; compensated: charge"):
        run_either(saga, colour)
    watcher.join()
    assert shop.effects == ["reserve", "charge", "refund", "release"]
    assert entered == [True]
    assert part(saga, "charge").do.error == "late: no end within 20ms"


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_f49_one_that_never_ends_is_in_doubt_until_somebody_knows(store: eo.Store, shop: Shop, colour: str) -> None:
    go = threading.Event()
    saga = slow_saga(store, shop, colour, "1ms", [], go)
    with pytest.raises(eo.InDoubt, match="it timed out, and whether it happened is not known"):
        run_either(saga, colour)
    assert shop.effects == ["reserve"]
    saga.resolve("o-1", "not_done")
    assert (saga.resume() if colour == "sync" else in_a_loop(store, saga.aresume())) == ResumeCounts(failed=1)
    assert shop.effects == ["reserve", "release"]
    go.set()


def test_a_late_failure_needs_no_compensation(store: eo.Store, shop: Shop) -> None:
    go = threading.Event()
    saga = slow_saga(store, shop, "sync", "30s", [], go)
    shop.at["charge"] = raising(Declined())
    watcher = when_turned(saga, go.set)
    with pytest.raises(eo.SagaFailed, match="compensated: reserve"):
        saga.run("o-1", ORDER)
    watcher.join()
    assert shop.effects == ["reserve", "release"]


# -- async


@pytest.mark.usefixtures("closed_in_its_loop")
async def test_an_async_saga_has_steps_of_both_colours(store: eo.Store, shop: Shop) -> None:
    saga = eo.Saga("both", store, input=Order)

    @saga.step()
    async def one(order: Order) -> str:
        await asyncio.sleep(0)
        return shop.do("one")

    @one.compensate
    async def undo_one(order: Order, done: eo.Done) -> None:
        shop.do(f"undo {done[one]}")

    @saga.step()
    def two(order: Order) -> int:
        assert threading.current_thread() is not threading.main_thread()
        shop.do("two")
        return 2

    done = await saga.arun("o-1", ORDER)
    assert (done[one], done[two]) == ("one-1", 2)
    shop.at["two"] = raising(Declined())
    with pytest.raises(eo.SagaFailed):
        await saga.arun("o-2", Order("o-2"))
    assert shop.effects == ["one", "two", "one", "undo one-3"]
    with pytest.raises(eo.SyncAsyncMismatch, match="use arun"):
        saga.run("o-3", ORDER)


@pytest.mark.usefixtures("closed_in_its_loop")
async def test_many_at_once(store: eo.Store, shop: Shop) -> None:
    saga = eo.Saga("many", store, input=Order)
    for name in ("one", "two", "three"):
        saga.step(name=name)(_async_step(shop, name))
    await asyncio.gather(*(saga.astart(f"o-{n}", Order(f"o-{n}")) for n in range(120)))
    first, second = await asyncio.gather(saga.aresume(), saga.aresume())
    assert first.done + second.done >= 120
    assert (first.failed, second.failed) == (0, 0)
    assert len(shop.done) == len(shop.calls) == 360


def _async_step(shop: Shop, name: str) -> Any:
    async def step(order: Order) -> str:
        return shop.do(name)

    return step


@pytest.mark.usefixtures("closed_in_its_loop")
async def test_a_cancelled_caller_leaves_the_saga_to_others(store: eo.Store, shop: Shop) -> None:
    saga = eo.Saga("cancelled", store, input=Order)
    entered = asyncio.Event()

    @saga.step()
    async def wait(order: Order) -> None:
        if not entered.is_set():
            entered.set()
            await asyncio.sleep(30)

    task = asyncio.create_task(saga.arun("o-1", ORDER))
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await saga.aresume() == ResumeCounts(done=1)


@pytest.mark.usefixtures("closed_in_its_loop")
async def test_a_sync_run_in_an_event_loop_is_refused(saga: eo.Saga[Order], shop: Shop) -> None:
    with pytest.raises(eo.SyncAsyncMismatch, match="would block"):
        saga.run("o-1", ORDER)
    done = await saga.arun("o-1", ORDER)
    assert done[saga.steps["charge"]].charge == "charge-2"


def test_a_sweeper_resumes_what_is_left(store: eo.Store, shop: Shop) -> None:
    saga = order_saga(store, shop)
    shipped = threading.Event()
    shop.after["ship"] = shipped.set
    saga.start("o-1", ORDER)
    with saga.sweeper(every="10ms"):
        assert shipped.wait(30)
    assert state(saga) == "done"
