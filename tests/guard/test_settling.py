"""Settling a guarded call: slow, interrupted, or with a store that fails."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import effectonce as eo
from effectonce.backends.memory.store import MemoryPort, MemoryStoreBackend
from effectonce.core.guarded_call.run import Run
from effectonce.record import Claim, Settlement
from effectonce.testing import ManualClock
from tests.core.grouped import GroupedBackend
from tests.harness.faulty_store import FaultyBackend, down

from .conftest import HandlerForm


def test_a_lease_is_renewed_while_its_completion_is_on_its_way() -> None:
    """The settlement stalls for longer than the lease; no other call takes over meanwhile."""

    class Slow(GroupedBackend):
        def sync_port(self) -> Any:
            port: Any = super().sync_port()
            run = port.run

            async def stalled(batch: Any) -> Any:
                if any(isinstance(op, Settlement) and op.state == "done" and op.key == "k" for op in batch):
                    time.sleep(1.0)  # noqa: ASYNC251
                return await run(batch)

            port.run = stalled
            return port

    store = eo.Store(Slow(), sweep_every=None)
    first = threading.Thread(
        target=eo.once(store, scope=eo.GLOBAL, key="k", lease="200ms")(lambda k: "first"), args=("k",)
    )
    first.start()
    time.sleep(0.7)
    with pytest.raises(eo.InProgress):
        eo.once(store, scope=eo.GLOBAL, key="k", lease="200ms")(lambda k: "second")("k")
    first.join(10)
    store.close()


def test_a_graceful_shutdown_releases_what_was_running() -> None:
    store = eo.Store(GroupedBackend(latency=0.02), sweep_every=None)

    @eo.once(store, scope="s", key="k")
    async def handler(k: str) -> None:
        await asyncio.sleep(60)

    async def main() -> None:
        tasks = [asyncio.create_task(handler(f"k{n}")) for n in range(10)]
        await asyncio.sleep(0.1)
        assert len(tasks) == 10

    asyncio.run(main())
    states = {store.get("s", f"k{n}").state for n in range(10)}  # type: ignore[union-attr]
    assert states == {"free"}


def test_an_unrecorded_completion_says_that_the_handler_ran(store: eo.Store, clock: ManualClock) -> None:
    class Port(MemoryPort):
        def _settle(self, op: Any, now: int) -> bool:
            raise eo.StoreUnavailable("no route to host", 7.0)

    class Down(MemoryStoreBackend):
        def sync_port(self) -> Any:
            return Port(self)

    charge = eo.once(eo.Store(Down(clock=clock)), scope="s", key="k")(lambda k: k)
    with pytest.raises(eo.StoreUnavailable, match="the handler ran") as caught:
        charge("k")
    assert caught.value.retry_after == 7.0


def test_a_waiter_does_not_run_beside_the_first_because_the_store_blinked() -> None:
    class Blinks(MemoryStoreBackend):
        asked = 0

        def sync_port(self) -> Any:
            port: Any = super().sync_port()
            run = port.run

            async def blinking(batch: Any) -> Any:
                is_claim = isinstance(batch[0], Claim)
                Blinks.asked += is_claim
                if is_claim and Blinks.asked == 3:
                    raise eo.StoreUnavailable("blink")
                return await run(batch)

            port.run = blinking
            return port

    store = eo.Store(Blinks(), sweep_every=None)
    started, go = threading.Event(), threading.Event()

    @eo.once(store, scope=eo.GLOBAL, key="k")
    def first(k: str) -> None:
        started.set()
        go.wait(10)

    thread = threading.Thread(target=first, args=("k",))
    thread.start()
    started.wait(10)
    second = eo.once(store, scope=eo.GLOBAL, key="k", wait="5s", on_store_error="run")(lambda k: pytest.fail("ran"))
    with pytest.raises(eo.StoreUnavailable):
        second("k")
    go.set()
    thread.join(10)


def test_resolving_as_done_without_a_result_tells_duplicates_to_ack(store: eo.Store) -> None:
    @eo.once(store, scope="s", key="k", on_error="doubt")
    def charge(k: str) -> dict[str, int]:
        raise TimeoutError

    for key in ("unknown", "abandoned"):
        with pytest.raises(TimeoutError):
            charge(key)
    store.resolve("s", "unknown", "done")
    with pytest.raises(eo.ResultNotStored, match="ack"):
        charge("unknown")
    store.resolve("s", "abandoned", "abandon")
    with pytest.raises(eo.PermanentFailure, match="operator abandoned it"):
        charge("abandoned")


def test_a_clock_that_stands_at_zero_is_no_reason_to_keep_a_claim() -> None:
    """F19"""
    store = eo.Store(MemoryStoreBackend(clock=ManualClock(0)), sweep_every=None)
    failing = [ValueError()]

    @eo.once(store, scope="s", key="k")
    def charge(k: str) -> str:
        if failing:
            raise failing.pop()
        return k

    with pytest.raises(ValueError):
        charge("k")
    assert charge("k") == "k"


def test_a_port_that_overrides_operations_gets_all_of_them(clock: ManualClock) -> None:
    seen: list[str] = []

    class Port(MemoryPort):
        async def run(self, batch: Any) -> Any:
            seen.extend(type(op).__name__ for op in batch)
            return await super().run(batch)

    class Wrapped:
        def __init__(self, port: MemoryPort) -> None:
            self._port = port

        def __getattr__(self, name: str) -> Any:
            return getattr(self._port, name)

        async def run(self, batch: Any) -> Any:
            seen.extend(type(op).__name__ for op in batch)
            return await self._port.run(batch)

    class Backend(MemoryStoreBackend):
        wraps: Callable[[MemoryStoreBackend], Any] = Port

        def sync_port(self) -> Any:
            return type(self).wraps(self)

    class Wrapping(Backend):
        wraps = staticmethod(lambda backend: Wrapped(MemoryPort(backend)))

    for backend in (Backend(clock=clock), Wrapping(clock=clock)):
        seen.clear()
        charge = eo.once(eo.Store(backend), scope="s", key="k")(lambda k: k)
        assert (charge("a"), charge("b")) == ("a", "b")
        assert seen == ["Claim", "Settlement"] * 2


def test_a_time_limit_that_strikes_while_the_result_is_recorded_does_not_lose_it(clock: ManualClock) -> None:
    """It is raised by a signal's handler, wherever the program is, and says nothing about the result in the store."""

    class TimeLimit(Exception):
        pass

    class Port(MemoryPort):
        limits = iter([TimeLimit()])

        async def run(self, batch: Any) -> Any:
            for limit in self.limits if isinstance(batch[0], Settlement) else ():
                raise limit
            return await super().run(batch)

    class Backend(MemoryStoreBackend):
        def sync_port(self) -> Any:
            return Port(self)

    store = eo.Store(Backend(clock=clock))

    @eo.once(store, scope="charge", key="k")
    def charge(k: str) -> str:
        return "receipt"

    outcomes = [charge.call("k") for _ in range(2)]
    assert [(each.value, each.replayed) for each in outcomes] == [("receipt", False), ("receipt", True)]
    assert next(Port.limits, None) is None


def test_on_store_error_run_also_where_the_store_is_in_this_process(clock: ManualClock) -> None:
    class Port(MemoryPort):
        async def run(self, batch: Any) -> Any:
            raise eo.StoreUnavailable("it is away")

    class Backend(MemoryStoreBackend):
        def sync_port(self) -> Any:
            return Port(self)

    events: list[str] = []
    store = eo.Store(Backend(clock=clock), hooks=[lambda event: events.append(event.kind)])
    charge = eo.once(store, scope="s", key="k", on_store_error="run")(lambda k: k)
    assert charge("k") == "k"
    assert events == ["unprotected"]


@pytest.mark.parametrize("exit_with", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_f16_every_way_out_releases_and_is_raised_again(
    store: eo.Store, exit_with: type[BaseException], clock: ManualClock
) -> None:
    @eo.once(store, scope="charge", key="k")
    def charge(k: str) -> None:
        raise exit_with

    with pytest.raises(exit_with):
        charge("p1")
    record = store.get("charge", "p1")
    assert record is not None
    assert (record.state, record.attempts) == ("free", 1)


def test_f16_an_interruption_just_before_the_handler_releases_its_key(
    store: eo.Store, form: HandlerForm, monkeypatch: pytest.MonkeyPatch
) -> None:
    charge = form.once(store, scope="charge", key="k")(lambda k: 7)

    enter = Run.enter

    def interrupted(run: Run) -> None:
        enter(run)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Run, "enter", interrupted)
        with pytest.raises(KeyboardInterrupt):
            charge("p1")
    record = store.get("charge", "p1")
    assert record is not None
    assert record.state == "free"
    assert charge("p1") == 7


async def test_f16_a_cancelled_task_releases_its_key(store: eo.Store) -> None:
    started = asyncio.Event()

    @eo.once(store, scope="charge", key="k")
    async def charge(k: str) -> None:
        started.set()
        await asyncio.sleep(60)

    task = asyncio.create_task(charge("p1"))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    record = store.get("charge", "p1")
    assert record is not None
    assert record.state == "free"


async def test_f16_a_closed_coroutine_leaves_its_key_to_the_lease(store: eo.Store) -> None:
    @eo.once(store, scope="charge", key="k")
    async def charge(k: str) -> None:
        await asyncio.sleep(60)

    coroutine = charge("p1")
    coroutine.send(None)
    coroutine.close()
    record = store.get("charge", "p1")
    assert record is not None
    assert record.state == "claimed"


def test_f17_a_failing_release_does_not_hide_the_handlers_error(
    faulty: FaultyBackend, form: HandlerForm, caplog: pytest.LogCaptureFixture
) -> None:
    store = eo.Store(faulty)

    @form.once(store, scope="charge", key="k")
    def charge(k: str) -> None:
        faulty.before = down
        raise ValueError("the real cause")

    with caplog.at_level(logging.WARNING, "effectonce"), pytest.raises(ValueError, match="the real cause"):
        charge("p1")
    assert "could not be settled" in caplog.text


def test_f36_a_store_that_is_down_runs_nothing(faulty: FaultyBackend, form: HandlerForm) -> None:
    store = eo.Store(faulty)
    faulty.before = down
    runs: list[int] = []
    charge = form.once(store, scope="charge", key="k")(lambda k: runs.append(1))
    with pytest.raises(eo.StoreUnavailable) as caught:
        charge("p1")
    assert caught.value.retry_after > 0
    assert runs == []


def test_f36_a_completion_that_cannot_be_recorded_is_not_a_success(faulty: FaultyBackend, form: HandlerForm) -> None:
    """Nothing is acked: the message is redelivered when the lease has ended."""
    store = eo.Store(faulty)

    @form.once(store, scope="charge", key="k")
    def charge(k: str) -> str:
        faulty.before = down
        return "receipt"

    with pytest.raises(eo.StoreUnavailable):
        charge("p1")


def test_running_without_the_store_is_an_explicit_choice_with_an_event(
    faulty: FaultyBackend, form: HandlerForm, events: list[eo.Event]
) -> None:
    store = eo.Store(faulty, hooks=[events.append])
    faulty.before = down
    charge = form.once(store, scope="charge", key="k", on_store_error="run")(lambda k: "receipt")
    assert charge("p1") == "receipt"
    assert [event.kind for event in events] == ["unprotected"]
