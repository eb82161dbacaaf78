"""What a saga promises: forward once, back in reverse, and an operator where nobody knows."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import effectonce as eo
from effectonce.saga import Resumed
from effectonce.stores.memory import MemoryBackend
from effectonce.testing import ManualClock

from .shop import QUICK, Order, Receipt, Shop, order_saga, raising

ORDER = Order("o-1")


class Declined(Exception):
    pass


class Stopped(BaseException):
    """The process is asked to end."""


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path, unique_name: str) -> Iterator[eo.Store]:
    url = "memory://"
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/shop.db"
    elif request.param == "postgresql":
        server = request.getfixturevalue("postgres_url")
        url = f"{server}{'&' if '?' in server else '?'}prefix={unique_name}"
    with eo.connect(url, sweep_every=None) as store:
        store.migrate()
        yield store


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def saga(store: eo.Store, shop: Shop) -> eo.Saga[Order]:
    return order_saga(store, shop)


def state(saga: eo.Saga[Any], id: str = "o-1") -> str:
    record = saga.get(id)
    assert record is not None
    return record.state


def part(saga: eo.Saga[Any], step: str, id: str = "o-1") -> Any:
    record = saga.get(id)
    assert record is not None
    return next(entry for entry in saga.log(record).entries if entry.name == step)


# -- forward


def test_the_steps_run_in_order_and_a_duplicate_gets_what_they_gave(saga: eo.Saga[Order], shop: Shop) -> None:
    first, again = saga.run("o-1", ORDER), saga.run("o-1", ORDER)
    charge = saga.steps["charge"]
    assert first[charge] == again[charge] == Receipt("charge-2", 4200)
    assert again[saga.steps["ship"]] is None
    assert shop.calls == ["reserve", "charge", "ship"]


def test_three_steps_are_four_commits(shop: Shop) -> None:
    with eo.connect("memory://") as store:
        side = store.engine.sync_side()
        claim, settle = side.claim, side.settle
        ops: list[Any] = []

        def noting(submit: Any) -> Any:
            def noted(op: Any) -> Any:
                ops.append(type(op).__name__)
                return submit(op)

            return noted

        side.claim, side.settle = noting(claim), noting(settle)
        order_saga(store, shop).run("o-1", ORDER)
    assert ops == ["Claim", "Note", "Note", "Settlement"]


def test_another_input_under_the_same_id_is_refused(saga: eo.Saga[Order], shop: Shop) -> None:
    saga.run("o-1", ORDER)
    with pytest.raises(eo.PayloadMismatch):
        saga.run("o-1", Order("o-1", 9999))
    assert shop.calls == ["reserve", "charge", "ship"]


def test_a_step_is_tried_again_under_the_same_keys(saga: eo.Saga[Order], shop: Shop) -> None:
    keys: list[tuple[str, str, int]] = []

    def note() -> None:
        run = eo.current()
        keys.append((run.key, run.provider_key("stripe"), run.attempt))
        raising(ConnectionError(), 1 if len(keys) == 1 else 0)()

    shop.at["charge"] = note
    saga.run("o-1", ORDER)
    assert [(key, attempt) for key, _, attempt in keys] == [("o-1/charge", 1), ("o-1/charge", 2)]
    assert len({provider for _, provider, _ in keys}) == 1


def test_a_saga_that_is_started_is_run_by_resume(saga: eo.Saga[Order], shop: Shop) -> None:
    for number in range(3):
        saga.start(f"o-{number}", ORDER)
        saga.start(f"o-{number}", ORDER)
    assert shop.calls == []
    with pytest.raises(eo.PayloadMismatch):
        saga.start("o-1", Order("another"))
    assert saga.resume() == Resumed(done=3)
    assert saga.resume() == Resumed()
    assert shop.calls.count("ship") == 3
    saga.start("o-1", ORDER)
    assert saga.resume() == Resumed()


def test_what_an_interrupted_process_left_is_gone_on_with(saga: eo.Saga[Order], shop: Shop) -> None:
    shop.at["ship"] = raising(Stopped(), 1)
    with pytest.raises(Stopped):
        saga.run("o-1", ORDER)
    assert state(saga) == "free"
    assert saga.resume() == Resumed(done=1)
    assert shop.calls == ["reserve", "charge", "ship", "ship"]


def test_two_runners_do_not_run_one_saga(saga: eo.Saga[Order], shop: Shop, store: eo.Store) -> None:
    other = order_saga(store, shop)
    refused: list[Any] = []

    def beside() -> None:
        def run() -> None:
            with pytest.raises(eo.InProgress):
                other.run("o-1", ORDER)
            refused.append(other.resume())

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()

    shop.at["charge"] = beside
    saga.run("o-1", ORDER)
    assert refused == [Resumed()]
    assert shop.calls == ["reserve", "charge", "ship"]


def test_a_zombie_stops_where_another_has_taken_over(shop: Shop) -> None:
    clock = ManualClock()
    with eo.Store(MemoryBackend(clock=clock), sweep_every=None) as store:
        saga, other = order_saga(store, shop), order_saga(store, shop)

        def slept() -> None:
            shop.at.clear()
            clock.advance("31s")
            thread = threading.Thread(target=other.resume)
            thread.start()
            thread.join()

        shop.at["charge"] = slept
        with pytest.raises(eo.LeaseLost):
            saga.run("o-1", ORDER)
        assert state(saga) == "done"
    assert shop.calls == ["reserve", "charge", "charge", "ship"]
    assert shop.effects == ["reserve", "charge", "ship"]


# -- back


def test_a_step_that_fails_turns_the_saga_around(saga: eo.Saga[Order], shop: Shop) -> None:
    shop.at["ship"] = raising(Declined("no carrier"))
    with pytest.raises(
        eo.SagaFailed, match=r"at step ship: Declined: no carrier; compensated: charge, reserve"
    ) as first:
        saga.run("o-1", ORDER)
    assert shop.calls == ["reserve", "charge", "ship", "ship", "refund", "release"]
    assert (first.value.step, first.value.error) == ("ship", f"{__name__}:Declined")
    assert isinstance(first.value.__cause__, Declined)
    with pytest.raises(eo.SagaFailed) as again:
        saga.run("o-1", ORDER)
    assert (str(again.value), again.value.step) == (str(first.value), "ship")
    assert len(shop.calls) == 6


def test_a_first_step_that_fails_has_nothing_to_undo(saga: eo.Saga[Order], shop: Shop) -> None:
    shop.at["reserve"] = raising(StopIteration("sold out"))
    with pytest.raises(eo.SagaFailed, match="StopIteration: sold out; there was nothing to undo"):
        saga.run("o-1", ORDER)
    assert shop.effects == []


def test_f48_an_interrupted_compensation_goes_on_in_reverse_each_once(saga: eo.Saga[Order], shop: Shop) -> None:
    shop.at["ship"] = raising(Declined())
    shop.at["release"] = raising(Stopped(), 1)
    with pytest.raises(Stopped):
        saga.run("o-1", ORDER)
    shop.at.pop("ship")  # it would succeed now; but the saga has turned around
    assert saga.resume() == Resumed(failed=1)
    assert shop.calls == ["reserve", "charge", "ship", "ship", "refund", "release", "release"]
    assert shop.effects == ["reserve", "charge", "refund", "release"]


def test_f50_a_compensation_that_keeps_failing_waits_for_an_operator(saga: eo.Saga[Order], shop: Shop) -> None:
    shop.at["ship"] = raising(Declined())
    shop.at["refund"] = raising(ConnectionError("bank closed"))
    with pytest.raises(eo.InDoubt, match=r"compensation of step charge: it keeps failing \(2 times\).*bank closed"):
        saga.run("o-1", ORDER)
    assert "release" not in shop.calls
    assert saga.resume() == Resumed()
    with pytest.raises(eo.InDoubt, match="sagas resolve"):
        saga.run("o-1", ORDER)
    assert [saga.log(record).id for record in saga.records("in_doubt")] == ["o-1"]

    saga.resolve("o-1", "retry")  # it still fails
    assert saga.resume() == Resumed(in_doubt=1)
    shop.at.pop("refund")
    saga.resolve("o-1", "retry")
    assert saga.resume() == Resumed(failed=1)
    assert shop.effects == ["reserve", "charge", "refund", "release"]


def test_f50_an_operator_has_refunded_by_hand(saga: eo.Saga[Order], shop: Shop) -> None:
    shop.at["ship"] = raising(Declined())
    shop.at["refund"] = raising(ConnectionError())
    with pytest.raises(eo.InDoubt):
        saga.run("o-1", ORDER)
    shop.at.pop("refund")
    with pytest.raises(eo.ConfigurationError, match="is to be done"):
        saga.resolve("o-1", "not_done")
    saga.resolve("o-1", "done", who="ann")
    assert saga.resume() == Resumed(failed=1)
    assert shop.effects == ["reserve", "charge", "release"]


def test_an_operator_gives_up(saga: eo.Saga[Order], shop: Shop) -> None:
    shop.at["ship"] = raising(Declined())
    shop.at["refund"] = raising(ConnectionError())
    with pytest.raises(eo.InDoubt):
        saga.run("o-1", ORDER)
    saga.resolve("o-1", "abandon")
    assert (state(saga), saga.resume()) == ("failed", Resumed())
    with pytest.raises(eo.PermanentFailure, match="gave it up"):
        saga.run("o-1", ORDER)


def test_an_operators_word_that_did_not_get_to_the_log_is_asked_for_again(saga: eo.Saga[Order], shop: Shop) -> None:
    shop.at["ship"] = raising(Declined())
    shop.at["refund"] = raising(ConnectionError())
    with pytest.raises(eo.InDoubt):
        saga.run("o-1", ORDER)
    saga.store.resolve(saga.scope, "o-1", "retry")  # and the process ends here
    assert saga.resume() == Resumed(in_doubt=1)
    assert shop.calls.count("refund") == 2


@pytest.mark.parametrize("unknown", [eo.OutcomeUnknown("?", 0.0), eo.StoreUnavailable("?", 0.0)])
def test_what_is_not_known_is_no_failure(saga: eo.Saga[Order], shop: Shop, unknown: Exception) -> None:
    """An unknown outside effect is compensated only once its outcome is known: until then nothing is."""
    shop.after["charge"] = raising(unknown)
    with pytest.raises(type(unknown)):
        saga.run("o-1", ORDER)
    assert saga.resume() == Resumed(later=1)
    assert "release" not in shop.calls
    shop.after.pop("charge")
    assert saga.resume() == Resumed(done=1)
    assert shop.effects == ["reserve", "charge", "ship"]


def test_a_step_in_doubt_makes_the_saga_so(saga: eo.Saga[Order], shop: Shop) -> None:
    shop.at["charge"] = raising(eo.InDoubt("the intent is in doubt"))
    with pytest.raises(eo.InDoubt, match="at step charge"):
        saga.run("o-1", ORDER)
    with pytest.raises(eo.ConfigurationError, match="cannot be the result of step charge"):
        saga.resolve("o-1", "done", result="x")
    assert state(saga) == "in_doubt"
    saga.resolve("o-1", "done", result={"charge": "ch_9", "amount": 4200})
    assert saga.resume() == Resumed(done=1)
    assert saga.run("o-1", ORDER)[saga.steps["charge"]] == Receipt("ch_9", 4200)
    assert shop.calls == ["reserve", "charge", "ship"]


def test_a_step_in_doubt_that_did_not_happen(saga: eo.Saga[Order], shop: Shop) -> None:
    shop.at["charge"] = raising(eo.InDoubt("the intent is in doubt"))
    with pytest.raises(eo.InDoubt):
        saga.run("o-1", ORDER)
    saga.resolve("o-1", "not_done")
    assert saga.resume() == Resumed(failed=1)
    assert shop.effects == ["reserve", "release"]


def test_a_retry_by_an_operator_has_a_new_provider_key(saga: eo.Saga[Order], shop: Shop) -> None:
    keys: list[str] = []

    def unsure() -> None:
        keys.append(eo.current().provider_key("stripe"))
        raise eo.InDoubt("?")

    shop.at["charge"] = unsure
    with pytest.raises(eo.InDoubt):
        saga.run("o-1", ORDER)
    saga.resolve("o-1", "retry")
    assert saga.resume() == Resumed(in_doubt=1)
    assert len(set(keys)) == 2


def test_a_saga_is_turned_around_by_an_operator(saga: eo.Saga[Order], shop: Shop) -> None:
    saga.start("o-1", ORDER)
    saga.compensate("o-1")
    with pytest.raises(eo.SagaFailed, match="an operator asked for it; there was nothing to undo"):
        saga.run("o-1", ORDER)
    with pytest.raises(eo.ConfigurationError, match="no saga order is known by"):
        saga.compensate("nobody")
    assert (shop.calls, saga.get("nobody")) == ([], None)


def test_what_was_begun_is_not_turned_around_blindly(saga: eo.Saga[Order], shop: Shop) -> None:
    shop.after["charge"] = raising(eo.OutcomeUnknown("?", 0.0))
    with pytest.raises(eo.OutcomeUnknown):
        saga.run("o-1", ORDER)
    with pytest.raises(eo.InDoubt, match="it was begun, and nobody knows"):
        saga.compensate("o-1")
    with pytest.raises(eo.ConfigurationError, match="did charge happen"):
        saga.resolve("o-1", "retry")
    saga.resolve("o-1", "done", result={"charge": "ch", "amount": 4200})
    assert saga.resume() == Resumed(failed=1)
    assert shop.effects == ["reserve", "charge", "refund", "release"]


def test_a_done_saga_is_not_turned_around(saga: eo.Saga[Order]) -> None:
    saga.run("o-1", ORDER)
    with pytest.raises(eo.ConfigurationError, match="is done"):
        saga.compensate("o-1")
    with pytest.raises(eo.NotInDoubt, match="is done, not in doubt"):
        saga.resolve("o-1", "retry")
    with pytest.raises(eo.NotInDoubt, match="not known"):
        saga.resolve("nobody", "retry")


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
        asyncio.run(saga.arun("o-1", ORDER))


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
    with pytest.raises(eo.InDoubt, match="it timed out, and nobody knows whether it happened"):
        run_either(saga, colour)
    assert shop.effects == ["reserve"]
    saga.resolve("o-1", "not_done")
    assert (saga.resume() if colour == "sync" else asyncio.run(saga.aresume())) == Resumed(failed=1)
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
    with pytest.raises(eo.WrongColour, match="use arun"):
        saga.run("o-3", ORDER)


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
    assert await saga.aresume() == Resumed(done=1)


async def test_a_sync_run_in_an_event_loop_is_refused(saga: eo.Saga[Order], shop: Shop) -> None:
    with pytest.raises(eo.WrongColour, match="would block"):
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
