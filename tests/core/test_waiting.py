"""A call with ``wait=`` gets the result when it is there: the poll behind its wake-up is for those that are lost."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

import effectonce as eo
from effectonce.backends.memory.store import MemoryPort, MemoryStoreBackend
from effectonce.core import change_listener
from effectonce.core.change_listener import ChangeListener
from effectonce.core.guarded_call import begin
from effectonce.core.run_sync import run_sync
from effectonce.core.waiting import TaskWakeUp, ThreadWakeUp, Waiters, WakeUp
from effectonce.record import Batchable, Claim, Reply, Settlement
from tests.harness.waiting import auntil, until


class NotifyingBackend(MemoryStoreBackend):
    """The memory store, which reports its settlements to listeners as a server does."""

    def __init__(self) -> None:
        super().__init__()
        self.capabilities = msgspec.structs.replace(MemoryStoreBackend.capabilities, notifies=True)
        self.settled: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        self.waiting_claims = 0

    def sync_port(self) -> MemoryPort:
        return _NotifyingPort(self)

    async_port = sync_port


class _NotifyingPort(MemoryPort):
    _backend: NotifyingBackend

    async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
        replies = await super().run(batch)
        for op in batch:
            if isinstance(op, Settlement):
                self._backend.settled.put((op.scope, op.key))
            self._backend.waiting_claims += isinstance(op, Claim) and op.waiting
        return replies

    async def changes(self, timeout: float) -> Sequence[tuple[str, str]]:
        try:
            return [self._backend.settled.get(timeout=timeout)]
        except queue.Empty:
            return ()


@pytest.fixture(autouse=True)
def no_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """No waiter finds out by polling: only by being woken."""
    monkeypatch.setattr(begin, "FIRST_POLL_S", 600.0)
    monkeypatch.setattr(begin, "MAX_POLL_S", 600.0)


def test_a_thread_that_waits_is_woken_by_the_settlement() -> None:
    go, backend = threading.Event(), NotifyingBackend()
    with eo.Store(backend, sweep_every=None) as store, ThreadPoolExecutor(2) as pool:

        @eo.once(store, scope="charge", key="order", lease="10m", wait="90s")
        def charge(order: str) -> str:
            go.wait(60)
            return "receipt"

        calls = [pool.submit(charge.call, "o-1") for _ in range(2)]
        until(lambda: backend.waiting_claims)
        go.set()
        outcomes = [call.result(60) for call in calls]
    assert sorted((outcome.value, outcome.replayed) for outcome in outcomes) == [("receipt", False), ("receipt", True)]


def test_a_wait_does_not_need_a_thread_for_wake_ups(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are only hints: a machine that can start no thread must not fail the call. The next call tries again."""
    waiters = Waiters()
    listener = ChangeListener(NotifyingBackend(), waiters)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", raise_no_thread)
        listener.start()
    listener.start()
    assert "effectonce-listener" in [thread.name for thread in threading.enumerate()]
    listener.stop()


def raise_no_thread(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


async def test_a_task_that_waits_is_woken_by_the_settlement() -> None:
    go, backend = asyncio.Event(), NotifyingBackend()
    store = eo.Store(backend, sweep_every=None)

    @eo.once(store, scope="charge", key="order", lease="10m", wait="90s")
    async def charge(order: str) -> str:
        await go.wait()
        return "receipt"

    calls = [asyncio.create_task(charge.call("o-1")) for _ in range(2)]
    await auntil(lambda: backend.waiting_claims)
    go.set()
    outcomes = await asyncio.wait_for(asyncio.gather(*calls), 60)
    assert sorted((outcome.value, outcome.replayed) for outcome in outcomes) == [("receipt", False), ("receipt", True)]
    await store.aclose()


def test_one_who_gives_up_does_not_take_the_wake_up_from_those_who_still_wait() -> None:
    go, backend = threading.Event(), NotifyingBackend()
    with eo.Store(backend, sweep_every=None) as store, ThreadPoolExecutor(2) as pool:

        def charge(order: str) -> str:
            go.wait(60)
            return "receipt"

        patient, impatient = (
            eo.once(store, scope="charge", key="order", lease="10m", wait=wait)(charge) for wait in ("90s", "50ms")
        )
        calls = [pool.submit(patient, "o-1") for _ in range(2)]
        until(lambda: backend.waiting_claims)
        with pytest.raises(eo.InProgress):
            impatient("o-1")
        go.set()
        assert [call.result(60) for call in calls] == ["receipt", "receipt"]
        assert store.runtime.waiters.waiting == {}


def test_a_settlement_by_another_process_wakes_those_who_wait_where_the_store_reports_it() -> None:
    go, backend, runs = threading.Event(), NotifyingBackend(), list[str]()

    def run(process: str) -> eo.Outcome[str]:
        with eo.Store(backend, sweep_every=None) as store:

            @eo.once(store, scope="charge", key="order", lease="10m", wait="90s")
            def charge(order: str) -> str:
                runs.append(process)
                go.wait(60)
                return "receipt"

            return charge.call("o-1")

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(run, "first")
        until(lambda: runs)
        second = pool.submit(run, "second")
        until(lambda: backend.waiting_claims)
        go.set()
        assert (first.result(60).replayed, second.result(60).replayed) == (False, True)
    assert runs == ["first"]


def listeners() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "effectonce-listener"]


def test_a_listener_that_ended_since_no_call_waited_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_listener, "LISTEN_SECONDS", 0.01)
    monkeypatch.setattr(change_listener, "MAX_IDLE_ROUNDS", 1)
    backend = NotifyingBackend()
    started, go = [threading.Event(), threading.Event()], [threading.Event(), threading.Event()]

    def charge(order: int) -> str:
        started[order].set()
        go[order].wait(60)
        return "receipt"

    with (
        eo.Store(backend, sweep_every=None) as store,
        eo.Store(backend, sweep_every=None) as other,
        ThreadPoolExecutor(2) as pool,
    ):
        there, here = (
            eo.once(each, scope="charge", key="order", lease="10m", wait="90s")(charge) for each in (other, store)
        )
        for order in range(2):
            first = pool.submit(there, order)
            assert started[order].wait(60)
            second = pool.submit(here.call, order)
            until(lambda: listeners() and store.runtime.waiters.waiting)
            go[order].set()
            assert (first.result(60), second.result(60).replayed) == ("receipt", True)
            until(lambda: not listeners())


def test_a_listener_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that was restarted: who waits then is woken all the same."""
    failures = [eo.StoreUnavailable("reset by peer")]
    changes = _NotifyingPort.changes

    async def failing(self: _NotifyingPort, timeout: float) -> Sequence[tuple[str, str]]:
        if failures:
            raise failures.pop()
        return await changes(self, timeout)

    monkeypatch.setattr(_NotifyingPort, "changes", failing)
    test_a_settlement_by_another_process_wakes_those_who_wait_where_the_store_reports_it()
    assert not failures


def test_one_that_waits_without_being_woken_asks_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(begin, "FIRST_POLL_S", 0.02)
    backend = NotifyingBackend()
    with eo.Store(backend, sweep_every=None) as store, ThreadPoolExecutor(1) as pool:

        @eo.once(store, scope="charge", key="order", lease="10m", wait="300ms")
        def charge(order: str) -> None:
            with pytest.raises(eo.InProgress):
                pool.submit(charge, order).result()

        charge("o-1")
    assert 1 <= backend.waiting_claims <= 8  # after 20, 60, 140 and 300 ms


# -- wake-ups


async def seconds_of_wait(wake_up: WakeUp, seconds: float) -> float:
    began = time.monotonic()
    if isinstance(wake_up, TaskWakeUp):
        await wake_up.wait(seconds)
    else:
        await asyncio.to_thread(run_sync, wake_up.wait(seconds))
    return time.monotonic() - began


@pytest.fixture(params=["thread", "task"])
async def a_wake_up(request: pytest.FixtureRequest) -> WakeUp:
    if request.param == "task":
        return TaskWakeUp(asyncio.get_running_loop())
    return await asyncio.to_thread(ThreadWakeUp)


async def test_a_wake_up_that_came_before_the_wait_ends_it_at_once_and_until_it_is_cleared(a_wake_up: WakeUp) -> None:
    assert await seconds_of_wait(a_wake_up, 0.05) > 0.04, "nothing has come yet"
    a_wake_up.clear()
    a_wake_up.wake()
    await asyncio.sleep(0)  # the loop's turn
    for _ in range(2):
        assert await seconds_of_wait(a_wake_up, 60.0) < 30
    a_wake_up.clear()
    assert await seconds_of_wait(a_wake_up, 0.05) > 0.04


async def test_a_wake_up_wakes_from_any_thread(a_wake_up: WakeUp) -> None:
    waker = threading.Timer(0.02, a_wake_up.wake)
    waker.start()
    assert await seconds_of_wait(a_wake_up, 60.0) < 30
    waker.join()


def test_a_wake_up_to_a_loop_that_is_closed_is_nothing() -> None:
    loop = asyncio.new_event_loop()
    wake_up = TaskWakeUp(loop)
    loop.close()
    wake_up.wake()


async def test_a_thread_never_waits_inside_an_event_loop() -> None:
    with pytest.raises(eo.SyncAsyncMismatch, match="would block the running event loop"):
        ThreadWakeUp()
