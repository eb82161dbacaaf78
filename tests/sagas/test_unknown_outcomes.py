"""Steps with an unknown outcome: network errors, timeouts, and what proves that a step did not happen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest

import effectonce as eo
from effectonce.backends.memory.store import MemoryStoreBackend
from effectonce.sagas import log as saga_flow
from effectonce.sagas.claimed_saga import ClaimedSaga
from effectonce.sagas.recovery import ResumeCounts
from effectonce.testing import ManualClock
from effectonce.testing.fault_points import FaultInjectingBackend

from .shop import Order, Shop, killed_after, order_saga, raising

ORDER = Order("o-1")


@pytest.mark.parametrize(
    "error", [TimeoutError("read"), ConnectionResetError(), httpx.ReadTimeout("read"), httpx.RemoteProtocolError("cut")]
)
def test_an_error_of_the_network_is_not_taken_for_a_failure(error: Exception) -> None:
    """The charge may have happened: turned around without it, it would never be refunded."""
    store, shop = eo.connect("memory://", sweep_every=None), Shop()
    saga = order_saga(store, shop)
    shop.after["charge"] = raising(error)
    with pytest.raises(eo.OutcomeUnknown, match="whether charge happened is unknown"):
        saga.run("o-1", ORDER)
    assert "release" not in shop.calls
    shop.after.clear()
    assert saga.resume() == ResumeCounts(done=1)
    assert shop.effects == ["reserve", "charge", "ship"]


@pytest.mark.parametrize("error", [httpx.ConnectError("refused"), ConnectionError("closed")])
def test_what_never_left_is_a_failure(error: Exception) -> None:
    store, shop = eo.connect("memory://", sweep_every=None), Shop()
    shop.at["charge"] = raising(error)
    with pytest.raises(eo.SagaFailed, match="compensated: reserve"):
        order_saga(store, shop).run("o-1", ORDER)


@pytest.mark.parametrize("then", [httpx.ConnectError("refused"), ConnectionRefusedError()])
def test_what_never_left_says_nothing_about_the_attempt_before(then: Exception) -> None:
    """Rule 4, for plain steps: the first may have charged, the second could not even connect."""
    store, shop = eo.connect("memory://", sweep_every=None), Shop()
    saga = order_saga(store, shop)
    shop.after["charge"] = raising(TimeoutError(), 1)
    shop.at["charge"] = _from_the_second_on(then)
    with pytest.raises(eo.OutcomeUnknown):
        saga.run("o-1", ORDER)
    shop.at.clear()
    assert saga.resume() == ResumeCounts(done=1)
    assert shop.effects == ["reserve", "charge", "ship"]


def _from_the_second_on(error: Exception) -> Any:
    calls: list[int] = []

    def fail() -> None:
        calls.append(1)
        if len(calls) > 1:
            raise error

    return fail


async def test_cancelled_while_it_waits_to_try_again_the_attempt_before_is_not_forgotten() -> None:
    store = eo.connect("memory://", sweep_every=None)
    saga = eo.Saga("order", store, input=Order)
    tried = asyncio.Event()

    @saga.step(retry=eo.Retry(2, first="1h", cap="1h"))
    async def charge(order: Order) -> None:
        tried.set()
        raise eo.OutcomeUnknown("charged, or not", 3600.0)

    task = asyncio.create_task(saga.arun("o-1", ORDER))
    await tried.wait()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(eo.InDoubt, match="whether it happened is not known"):
        await saga.acompensate("o-1")


@pytest.mark.parametrize("step", ["charge", "refund"])
def test_f50_what_stays_unknown_comes_to_the_operator_in_the_end(step: str) -> None:
    clock, shop = ManualClock(), Shop()
    store: Any = eo.Store(MemoryStoreBackend(clock=clock), sweep_every=None)
    saga = order_saga(store, shop)
    shop.at["ship"] = raising(RuntimeError("no carrier"))
    shop.after[step] = raising(eo.OutcomeUnknown("?", 0.0))
    with pytest.raises(eo.OutcomeUnknown):
        saga.run("o-1", ORDER)
    for _ in range(3):
        clock.advance("6h")
        assert saga.resume() == ResumeCounts(later=1)
    clock.advance("7h")
    assert saga.resume() == ResumeCounts(in_doubt=1)
    (record,) = saga.records("in_doubt")
    assert "it was not known whether it happened" in saga.log(record).doubt_reason


@pytest.mark.parametrize("word", ["dnoe", "", None, "done "])
def test_a_mistyped_decision_changes_nothing(word: Any) -> None:
    backend, shop = FaultInjectingBackend(), Shop()
    store: Any = eo.Store(backend, sweep_every=None)
    killed_after("charge", store, backend, shop)
    backend.clock.advance("31d")
    saga = order_saga(store, shop)
    assert saga.resume() == ResumeCounts(in_doubt=1)
    before = list(saga.records("in_doubt"))
    with pytest.raises(eo.ConfigurationError, match="resolve takes 'done', 'not_done', 'retry' or 'abandon'"):
        saga.resolve("o-1", word)
    assert list(saga.records("in_doubt")) == before


def test_past_that_it_is_in_doubt_and_not_run_blindly() -> None:
    backend, shop = FaultInjectingBackend(), Shop()
    store: Any = eo.Store(backend, sweep_every=None)
    killed_after("charge", store, backend, shop)
    backend.clock.advance("31d")
    saga = order_saga(store, shop)
    assert saga.resume() == ResumeCounts(in_doubt=1)
    assert "longer ago than its effect is remembered" in saga.log(saga.get("o-1")).doubt_reason  # type: ignore[arg-type]
    assert shop.calls.count("charge") == 1


def test_a_step_that_ended_in_good_order_is_not_run_blindly_either() -> None:
    """An unknown outcome was written down, and then no process resumed the saga for longer than the retention."""
    backend, shop = FaultInjectingBackend(), Shop()
    store: Any = eo.Store(backend, sweep_every=None)
    saga = order_saga(store, shop)
    shop.at["charge"] = raising(eo.OutcomeUnknown("no answer", 0.0))
    with pytest.raises(eo.OutcomeUnknown):
        saga.run("o-1", ORDER)
    before = shop.calls.count("charge")
    backend.clock.advance("31d")
    shop.at.clear()
    assert saga.resume() == ResumeCounts(in_doubt=1)
    assert shop.calls.count("charge") == before


ORDER = Order("o-1")


class Declined(Exception):
    pass


@pytest.fixture
def store() -> eo.Store:
    return eo.connect("memory://", sweep_every=None)


@pytest.mark.parametrize("before", [TimeoutError("read"), ConnectionResetError(), httpx.ReadTimeout("read")])
def test_an_error_after_one_of_the_network_is_no_proof_that_nothing_happened(
    store: eo.Store, before: Exception
) -> None:
    """A "duplicate" is just what a first success causes: the charge must not be left standing."""
    shop = Shop()
    saga = order_saga(store, shop)
    shop.after["charge"] = raising(before, 1)
    shop.at["charge"] = _then(ValueError("duplicate order"))
    with pytest.raises(eo.InDoubt, match="ValueError: duplicate order; and an attempt before that may have happened"):
        saga.run("o-1", ORDER)
    assert "release" not in shop.calls
    saga.resolve("o-1", "done", result={"charge": "ch_1", "amount": 4200})
    assert saga.resume() == ResumeCounts(done=1)
    assert shop.effects == ["reserve", "charge", "ship"]


def test_nor_where_another_process_had_that_attempt(store: eo.Store) -> None:
    shop = Shop()
    saga = order_saga(store, shop, retry=eo.Retry(1))
    shop.after["charge"] = raising(TimeoutError(), 1)
    with pytest.raises(eo.OutcomeUnknown):
        saga.run("o-1", ORDER)
    shop.at["charge"] = raising(ValueError("duplicate order"))
    assert order_saga(store, shop, retry=eo.Retry(1)).resume() == ResumeCounts(in_doubt=1)


async def test_it_is_written_down_before_the_next_attempt_is_waited_for(store: eo.Store) -> None:
    """The process may end while it waits."""
    shop = Shop()
    saga = order_saga(store, shop, retry=eo.Retry(3, first="5m"))
    shop.after["charge"] = raising(TimeoutError(), 1)
    running = asyncio.create_task(saga.arun("o-1", ORDER))
    part = saga_flow.StepProgress()
    while not part.outcome_inferred:
        await asyncio.sleep(0.001)
        record = store.get(saga.scope, "o-1")
        part = saga.log(record).entries[1].do if record is not None else part
    assert (record.state, part.state) == ("claimed", "running")  # type: ignore[union-attr]
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_nor_where_that_attempt_was_cancelled(store: eo.Store) -> None:
    saga = eo.Saga("slow", store, input=Order)
    charged: list[str] = []

    @saga.step()
    async def charge(order: Order) -> None:
        if charged:
            raise ValueError("duplicate order")
        charged.append(order.id)
        await asyncio.sleep(60)

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(saga.arun("o-1", ORDER), 0.05)
    assert await saga.aresume() == ResumeCounts(in_doubt=1)
    assert charged == ["o-1"]


def _answered(status: int) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "https://api.example")
    return httpx.HTTPStatusError(str(status), request=request, response=httpx.Response(status, request=request))


def _raised_from(cause: Exception) -> Exception:
    error = Declined("raised from an answer")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("retry", "then"),
    [
        (eo.Retry(2, first=0, on={Declined: "dead"}), Declined()),
        (eo.Retry(2, first=0), eo.PermanentFailure("the intent failed for good", "x")),
        (eo.Retry(2, first=0), _answered(402)),
        (eo.Retry(2, first=0), _raised_from(_answered(402))),
    ],
    ids=["final by its retry", "an intent's", "an answer", "raised from an answer"],
)
def test_what_is_proof_turns_it_around(store: eo.Store, retry: eo.Retry, then: Exception) -> None:
    shop = Shop()
    saga = order_saga(store, shop, retry=retry)
    shop.at["charge"] = _first(TimeoutError(), then)
    with pytest.raises(eo.SagaFailed, match="compensated: reserve"):
        saga.run("o-1", ORDER)
    assert shop.effects == ["reserve", "release"]


def test_a_step_that_says_itself_that_it_does_not_know_has_the_last_word(store: eo.Store) -> None:
    """As an intent does, which knows what became of each of its sends."""
    shop = Shop()
    shop.at["charge"] = _first(eo.OutcomeUnknown("?", 0.0), Declined())
    with pytest.raises(eo.SagaFailed, match="compensated: reserve"):
        order_saga(store, shop).run("o-1", ORDER)


def _then(error: Exception) -> Callable[[], None]:
    calls: list[int] = []

    def fail() -> None:
        calls.append(1)
        if len(calls) > 1:
            raise error

    return fail


def _first(first: Exception, then: Exception) -> Callable[[], None]:
    errors = iter([first])

    def fail() -> None:
        raise next(errors, then)

    return fail


@pytest.mark.parametrize("error", [eo.OutcomeUnknown("?", 0.0), ValueError("the bank says no")])
def test_f50_a_compensation_that_may_be_tried_for_ever_comes_to_the_operator_after_a_day(error: Exception) -> None:
    clock, shop = ManualClock(), Shop()
    store: Any = eo.Store(MemoryStoreBackend(clock=clock), sweep_every=None)
    retry = eo.Retry(None, first=0, on={Declined: "dead"})
    saga = order_saga(store, shop, retry=retry, lease="30d", max_run="60d")
    shop.at["ship"] = raising(Declined("no carrier"))

    def refund() -> None:
        clock.advance("1h")
        assert len(shop.calls) < 100, "it goes on for ever"
        raise error

    shop.at["refund"] = refund
    with pytest.raises(eo.InDoubt, match="compensation of step charge"):
        saga.run("o-1", ORDER)
    assert shop.calls.count("refund") in (24, 25)


def test_a_step_that_may_be_tried_for_ever_is_unless_nobody_knows_what_it_did() -> None:
    clock, shop = ManualClock(), Shop()
    store: Any = eo.Store(MemoryStoreBackend(clock=clock), sweep_every=None)
    saga = order_saga(store, shop, retry=eo.Retry(None, first=0), lease="30d", max_run="60d")
    left = [50]

    def charge() -> None:
        clock.advance("1h")
        left[0] -= 1
        if left[0]:
            raise Declined("no money yet")

    shop.at["charge"] = charge
    saga.run("o-1", ORDER)
    assert shop.calls.count("charge") == 50
    shop.at["charge"] = lambda: (clock.advance("1h"), raising(TimeoutError())())
    with pytest.raises(eo.InDoubt, match="for 1d it was not known whether it happened"):
        saga.run("o-2", ORDER)


@pytest.mark.parametrize(
    ("errors", "more_commits"),
    [([], 0), ([ValueError("no")], 0), ([TimeoutError("read")], 1), ([TimeoutError("read")] * 3, 1)],
    ids=["none", "one that proves a failure", "a lost answer", "three lost answers"],
)
def test_that_an_outcome_is_unknown_is_committed_once_before_the_step_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, errors: list[Exception], more_commits: int
) -> None:
    """If the process dies in the pause, the next one must know that the step may have happened."""
    commits: list[str] = []
    commit = ClaimedSaga.commit

    async def counted(self: ClaimedSaga) -> None:
        commits.append(self.log.entries[0].do.state)
        await commit(self)

    monkeypatch.setattr(ClaimedSaga, "commit", counted)
    store, left = eo.connect("memory://", sweep_every=None), list(errors)
    saga = eo.Saga("order", store, input=Order)

    @saga.step(retry=eo.Retry(5, first="1ms", cap="1ms"))
    def reserve(order: Order) -> None:
        if left:
            raise left.pop(0)

    @saga.step()
    def ship(order: Order) -> None: ...

    saga.run("o-1", ORDER)
    assert commits == ["running"] * more_commits + ["done"]
