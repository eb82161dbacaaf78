"""Each failed attempt at a step, and what a recovery meets, is one log line with its traceback."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

import effectonce as eo
from effectonce.providers import Verdict
from tests.harness.failure_lines import facts, failures, raised
from tests.harness.waiting import auntil, until

from .shop import Order

ORDER = Order("o-1")


@pytest.fixture
def store() -> eo.Store:
    return eo.connect("memory://", sweep_every=None)


def failing_saga(store: eo.Store, error: Exception, retry: eo.Retry, undo_fails: bool = False) -> eo.Saga[Order]:
    saga = eo.Saga("order", store, input=Order)

    @saga.step()
    def reserve(order: Order) -> None: ...

    @reserve.compensate(retry=eo.Retry(1))
    def release(order: Order) -> None:
        if undo_fails:
            raise LookupError("gone")

    @saga.step(retry=retry)
    def charge(order: Order) -> None:
        raise error

    return saga


def test_each_failed_attempt_at_a_step_is_logged_once(store: eo.Store, caplog: pytest.LogCaptureFixture) -> None:
    error = ValueError("declined")
    saga = failing_saga(store, error, eo.Retry(2, first="1ms", jitter=False))
    with pytest.raises(eo.SagaFailed):
        saga.run("o-1", ORDER)
    first, last = failures(caplog)
    assert (first.levelname, last.levelname) == ("WARNING", "ERROR")
    assert raised(first) is raised(last) is error
    common = {"saga": "order", "step": "charge", "scope": "saga/order", "key": "o-1", "error": "builtins:ValueError"}
    assert facts(first) == {**common, "attempt": 1, "next": "is retried in 1ms"}
    assert facts(last) == {**common, "attempt": 2, "next": "the saga undoes the steps before it"}
    assert "in charge" in caplog.text


def test_a_failed_compensation_is_logged_once(store: eo.Store, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(eo.InDoubt):
        failing_saga(store, ValueError(), eo.Retry(1), undo_fails=True).run("o-1", ORDER)
    _, undo = failures(caplog)
    assert (undo.levelname, facts(undo)["compensation of step"]) == ("ERROR", "reserve")
    assert isinstance(raised(undo), LookupError)
    assert "is in doubt: find out whether it happened, then decide with effectonce sagas resolve" in undo.getMessage()


@pytest.mark.parametrize(
    ("error", "level", "then"),
    [
        (eo.OutcomeUnknown("?", 0.0), "WARNING", "its outcome is unknown: the next resume tries it again"),
        (eo.InDoubt("?"), "ERROR", "is in doubt: find out"),
    ],
)
def test_a_step_whose_outcome_is_unknown_is_logged_once(
    store: eo.Store, caplog: pytest.LogCaptureFixture, error: Exception, level: str, then: str
) -> None:
    with pytest.raises(type(error)):
        failing_saga(store, error, eo.Retry(1)).run("o-1", ORDER)
    (line,) = failures(caplog)
    assert (line.levelname, raised(line)) == (level, error)
    assert then in line.getMessage()


@pytest.mark.parametrize(
    ("verdict", "raises", "then"),
    [
        (Verdict.failure("card_declined"), eo.SagaFailed, "the saga undoes the steps before it"),
        (
            Verdict.unknown("no answer", 0.0),
            eo.OutcomeUnknown,
            "its outcome is unknown: the next resume tries it again",
        ),
    ],
)
@pytest.mark.parametrize("raised_by_client", [True, False])
def test_what_an_intent_in_a_step_meets_is_logged_once_by_the_saga(
    store: eo.Store,
    caplog: pytest.LogCaptureFixture,
    verdict: Verdict,
    raises: type[Exception],
    then: str,
    raised_by_client: bool,
) -> None:
    intents = eo.Intents(store, scope="billing")
    intents.classify("stripe")(lambda outcome: verdict)
    saga = eo.Saga("order", store, input=Order)

    @intents.operation("stripe", "charge", returns=str)
    def send(intent: eo.Intent[int]) -> str:
        if raised_by_client:
            raise ValueError("402")
        return "402"

    @saga.step(retry=eo.Retry(1))
    def charge(order: Order) -> None:
        send(4200, key=eo.current().key)

    with pytest.raises(raises):
        saga.run("o-1", ORDER)
    (line,) = failures(caplog)
    assert (line.levelname, facts(line)["next"]) == ("WARNING", then)
    assert {"saga": "order", "step": "charge", "attempt": 1}.items() <= facts(line).items()
    if verdict.kind == "failure":
        assert raised(line) is None, "an answer of the bank is no defect"
    else:
        assert ("in send" in caplog.text) is raised_by_client, "the call's own traceback is there"


def test_what_a_recovery_meets_has_its_traceback(
    store: eo.Store, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    saga = failing_saga(store, ValueError(), eo.Retry(1))
    saga.start("o-1", ORDER)

    def broken(*arguments: Any) -> Any:
        raise KeyError("a defect")

    monkeypatch.setattr(saga, "prepare_run", broken)
    assert saga.resume().refused == 1
    (line,) = failures(caplog)
    assert (line.levelname, type(raised(line))) == ("WARNING", KeyError)
    assert line.getMessage().startswith("recovery of saga order failed and is left as it is: KeyError")
    record = store.get("saga/order", "o-1")
    assert record is not None
    assert record.state == "free", "the defect is not the saga's failure"


def test_a_sweeper_that_fails_is_logged_with_its_traceback(
    store: eo.Store, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    saga = failing_saga(store, ValueError(), eo.Retry(1))
    swept = threading.Event()
    store.add_hook(lambda event: swept.set() if event.kind == "sweep_failed" else None)

    def broken(**options: Any) -> Any:
        raise KeyError("a defect")

    monkeypatch.setattr(saga, "resume", broken)
    with saga.sweeper(every="1h"):
        assert swept.wait(20)
    (line,) = failures(caplog)
    assert (line.levelname, type(raised(line))) == ("WARNING", KeyError)
    assert "in broken" in caplog.text


LATE = ValueError("the bank says no")


@pytest.mark.parametrize(
    ("late", "raises", "then"),
    [
        (None, eo.SagaFailed, []),
        (LATE, eo.SagaFailed, ["ended late: the saga undoes the steps before it"]),
        (eo.OutcomeUnknown("?"), eo.InDoubt, ["ended late, and is in doubt: find out"]),
    ],
)
def test_a_step_that_times_out_is_logged_once_and_its_late_error_once(
    store: eo.Store, caplog: pytest.LogCaptureFixture, late: Exception | None, raises: Any, then: list[str]
) -> None:
    saga = eo.Saga("order", store, input=Order)

    @saga.step(timeout="10ms", grace="20s")
    def charge(order: Order) -> None:
        while not eo.current().lease_lost:  # it is told to stop
            time.sleep(0.001)
        if late is not None:
            raise late

    @charge.compensate
    def refund(order: Order) -> None: ...

    with pytest.raises(raises):
        saga.run("o-1", ORDER)
    timeout, *ends = failures(caplog)
    assert [line.levelname for line in (timeout, *ends)] == ["ERROR"] * (1 + len(then))
    assert isinstance(raised(timeout), TimeoutError)
    common = {"saga": "order", "step": "charge", "scope": "saga/order", "key": "o-1", "attempt": 1}
    assert all(common.items() <= facts(line).items() for line in (timeout, *ends))
    assert facts(timeout)["next"] == "the saga turns around as soon as it has ended"
    assert [raised(line) for line in ends] == [late] * len(then)
    assert [facts(line)["next"][: len(text)] for line, text in zip(ends, then, strict=True)] == then
    assert ("in charge" in caplog.text) is bool(then), "the late error has its traceback"


def test_a_step_that_outlasts_its_grace_is_logged_when_it_ends(
    store: eo.Store, caplog: pytest.LogCaptureFixture
) -> None:
    saga, go = eo.Saga("order", store, input=Order), threading.Event()

    @saga.step(timeout="10ms", grace="1ms")
    def charge(order: Order) -> None:
        go.wait(30)
        raise LATE

    with pytest.raises(eo.InDoubt):
        saga.run("o-1", ORDER)
    assert len(failures(caplog)) == 1, "the timeout"
    go.set()
    until(lambda: len(failures(caplog)) == 2)
    late = failures(caplog)[1]
    assert (late.levelname, raised(late), facts(late)["step"]) == ("ERROR", LATE, "charge")
    assert facts(late)["next"].startswith("ended late, and is in doubt: find out")
    assert "in charge" in caplog.text


async def test_a_step_that_outlasts_its_cancelled_saga_is_logged_when_it_ends(
    store: eo.Store, caplog: pytest.LogCaptureFixture
) -> None:
    saga, entered, go = eo.Saga("order", store, input=Order), threading.Event(), threading.Event()

    @saga.step(timeout="1h")
    def charge(order: Order) -> None:
        entered.set()
        go.wait(30)
        raise LATE

    running = asyncio.create_task(saga.arun("o-1", ORDER))
    assert await asyncio.to_thread(entered.wait, 30)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert failures(caplog) == []
    go.set()
    await auntil(lambda: failures(caplog))
    (late,) = failures(caplog)
    assert (late.levelname, raised(late)) == ("WARNING", LATE)
    assert facts(late)["next"] == "ended late: the next resume tries it again"
    await store.aclose()
