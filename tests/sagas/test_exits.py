"""Steps that call sys.exit or cancel themselves, children that a step forked, and the sweeper."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import effectonce as eo
from effectonce.sagas.recovery import ResumeCounts
from tests.harness.signals import HANDLERS, signal_handled_by

from .shop import Order, Shop, order_saga, raising, state

ORDER = Order("o-1")


FORMS = ["sync", "async", "async with a timeout", "a thread"]


ENDS: list[Callable[[], BaseException]] = [lambda: SystemExit(3), asyncio.CancelledError]


class Declined(Exception):
    pass


@pytest.fixture
def store() -> eo.Store:
    return eo.connect("memory://", sweep_every=None)


def ending(store: eo.Store, form: str, end: Callable[[], BaseException], retry: Any = None) -> eo.Saga[str]:
    """A step that ends itself of the input ``bad``; of any other it is done."""
    saga = eo.Saga("ending", store, input=str)
    timeout = "30s" if form == "async with a timeout" else None

    def step(input: str) -> None:
        if input == "bad":
            raise end()

    async def astep(input: str) -> None:
        step(input)

    async def nothing(input: str) -> None: ...

    is_plain = form in ("sync", "a thread")
    saga.step(name="one", retry=retry or eo.Retry(1, max_crashes=3), timeout=timeout)(step if is_plain else astep)
    if form == "a thread":
        saga.step(name="two")(nothing)
    return saga


def resume(saga: eo.Saga[Any]) -> ResumeCounts:
    return asyncio.run(saga.aresume()) if saga.is_async else saga.resume()


def run(saga: eo.Saga[Any], id: str, input: Any) -> Any:
    return asyncio.run(saga.arun(id, input)) if saga.is_async else saga.run(id, input)


@pytest.mark.parametrize("end", ENDS, ids=["SystemExit", "CancelledError"])
@pytest.mark.parametrize("form", FORMS)
def test_f20_a_step_that_ends_itself_stops_no_other_and_comes_to_the_operator(
    store: eo.Store, caplog: pytest.LogCaptureFixture, form: str, end: Callable[[], BaseException]
) -> None:
    saga = ending(store, form, end)
    saga.start("a-bad", "bad")
    for number in range(3):
        saga.start(f"b-{number}", "good")
    assert resume(saga) == ResumeCounts(done=3, later=1)
    assert f"since a step that ends itself has no outcome: {type(end()).__name__}" in caplog.text
    assert [resume(saga) for _ in range(3)] == [ResumeCounts(later=1), ResumeCounts(later=1), ResumeCounts(in_doubt=1)]
    doubt = saga.log(saga.get("a-bad")).doubt_reason  # type: ignore[arg-type]
    assert f"3 attempts ended in it without an outcome; the last error was {type(end()).__name__}" in doubt


@pytest.mark.parametrize("end", ENDS, ids=["SystemExit", "CancelledError"])
@pytest.mark.parametrize("form", FORMS)
def test_the_caller_gets_the_exception_that_ended_the_step(
    store: eo.Store, form: str, end: Callable[[], BaseException]
) -> None:
    saga = ending(store, form, end)
    for _ in range(3):
        with pytest.raises(type(end())):
            run(saga, "o-1", "bad")
    with pytest.raises(eo.InDoubt, match="3 attempts ended in it without an outcome"):
        run(saga, "o-1", "bad")


def test_f50_a_compensation_that_ends_itself_comes_to_the_operator(store: eo.Store) -> None:
    shop = Shop()
    saga = order_saga(store, shop, retry=eo.Retry(1, max_crashes=2))
    shop.at["ship"] = raising(Declined())
    shop.at["refund"] = raising(SystemExit())
    saga.start("o-1", ORDER)
    assert [resume(saga) for _ in range(3)] == [ResumeCounts(later=1), ResumeCounts(later=1), ResumeCounts(in_doubt=1)]
    assert "release" not in shop.calls
    shop.at.pop("refund")
    saga.resolve("o-1", "retry")
    assert saga.resume() == ResumeCounts(failed=1)
    assert shop.effects == ["reserve", "charge", "refund", "release"]


def interrupted(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("handler", [interrupted, *HANDLERS.values()], ids=["interrupt", *HANDLERS])
def test_f16_a_process_that_is_asked_to_end_ends(store: eo.Store, handler: Any) -> None:
    """Ctrl-C; and a handler that calls sys.exit() on SIGTERM, which comes out of the step that happens to run."""
    saga = eo.Saga("signalled", store, input=str)
    calls: list[str] = []

    @saga.step()
    def one(input: str) -> None:
        calls.append(input)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)

    for number in range(3):
        saga.start(f"o-{number}", "x")
    with signal_handled_by(handler), pytest.raises((KeyboardInterrupt, SystemExit)):
        saga.resume()
    assert len(calls) == 1
    parts = [saga.log(record).entries[0].do for record in saga.records("open")]
    assert sorted((part.state, part.crashes) for part in parts) == [("pending", 0), ("pending", 0), ("running", 0)]


async def test_f16_a_cancelled_resume_ends(store: eo.Store) -> None:
    saga = eo.Saga("waits", store, input=str)
    entered = asyncio.Event()

    @saga.step()
    async def one(input: str) -> None:
        entered.set()
        await asyncio.sleep(30)

    await saga.astart("o-1", "x")
    task = asyncio.create_task(saga.aresume())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (record,) = saga.records("open")
    assert saga.log(record).entries[0].do.crashes == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.parametrize("by", ["resume", "a sweeper"])
def test_a_child_that_a_step_forked_ends_when_it_says_so(tmp_path: Path, by: str) -> None:
    """And does not resume its parent's sagas."""
    store = eo.connect(f"sqlite:///{tmp_path}/fork.db", sweep_every=None)
    saga = eo.Saga("forks", store, input=str)
    parent, went_on = os.getpid(), tmp_path / "went on"
    ended: list[int] = []

    @saga.step()
    def one(input: str) -> None:
        if os.getpid() != parent:
            went_on.touch()
            os._exit(9)
        child = os.fork()
        if not child:
            raise SystemExit(0)
        ended.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    for number in range(2):
        saga.start(f"o-{number}", "x")
    if by == "resume":
        try:
            saga.resume()
        except SystemExit:
            if os.getpid() != parent:
                os._exit(3)
            raise
        if os.getpid() != parent:
            os._exit(4)
        assert ended == [3, 3]
    else:
        with saga.sweeper(every="5ms"):
            _until(lambda: len(ended) == 2)
        assert 9 not in ended
    assert not went_on.exists()
    store.close()


@pytest.mark.parametrize("end", [*ENDS, KeyboardInterrupt], ids=["SystemExit", "CancelledError", "KeyboardInterrupt"])
@pytest.mark.parametrize("form", ["sync", "async"])
def test_f37_a_sweeper_outlives_what_it_resumes(
    store: eo.Store, caplog: pytest.LogCaptureFixture, form: str, end: Callable[[], BaseException]
) -> None:
    saga = ending(store, form, end)
    saga.start("a-bad", "bad")
    with saga.sweeper(every="5ms") as sweeper:
        _until(lambda: "SystemExit" in caplog.text or "CancelledError" in caplog.text or "Keyboard" in caplog.text)
        saga.start("b-later", "good")
        if end is not KeyboardInterrupt:
            _until(lambda: state(saga, "b-later") == "done")
        assert sweeper._thread.is_alive()


def _until(so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not so():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("form", ["sync", "async"])
def test_leaving_a_sweeper_waits_for_what_is_on_its_way_and_not_for_all_that_is_left(
    store: eo.Store, form: str
) -> None:
    saga = eo.Saga("many", store, input=int)
    entered, go = threading.Event(), threading.Event()
    calls: list[int] = []

    def one(input: int) -> None:
        calls.append(input)
        entered.set()
        go.wait(30)

    async def aone(input: int) -> None:
        one(input)

    saga.step(name="one")(one if form == "sync" else aone)
    for number in range(150):
        saga.start(number, number)
    sweeper = saga.sweeper(every="1h")
    with sweeper:
        assert entered.wait(30)
        sweeper._stopping.set()
        go.set()
    assert len(calls) == (1 if form == "sync" else 50)
    assert sum(1 for _ in saga.records("open")) == 150 - len(calls)
