"""A store that is closed, or forgotten, while it is in use."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import pytest

import effectonce as eo
from effectonce.backends.memory.store import MemoryStoreBackend
from effectonce.core.store_runtime import StoreRuntime
from effectonce.testing import override
from tests.core.grouped import GroupedBackend


def test_closing_a_store_in_use_waits_for_each_round_trip(tmp_path: Path) -> None:
    """Closing a connection under another thread's feet once brought the whole process down."""
    store = eo.connect(f"sqlite:///{tmp_path}/close.db?synchronous=NORMAL")
    charge = eo.once(store, scope="s", key="k")(lambda k: k)
    stop = threading.Event()
    failures: list[BaseException] = []

    def work(name: str) -> None:
        for number in range(10**9):
            if stop.is_set():
                return
            try:
                charge(f"{name}-{number}")
            except BaseException as error:
                failures.append(error)
                return

    threads = [threading.Thread(target=work, args=(f"t{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        time.sleep(0.01)
        store.close()
    stop.set()
    for thread in threads:
        thread.join(30)
    store.close()
    assert failures == []


def test_a_store_without_references_leaves_no_thread_and_no_runtime() -> None:
    store = eo.connect("memory://")
    eo.once(store, scope="s", key="k")(lambda k: k)("k")
    runtime: weakref.ref[StoreRuntime] = weakref.ref(store.runtime)
    del store
    gc.collect()
    assert runtime() is None
    for _ in range(100):
        if not [t for t in threading.enumerate() if t.name == "effectonce-heartbeat" and t.is_alive()]:
            break
        time.sleep(0.02)


def test_one_heartbeat_thread_even_after_a_close_in_mid_work() -> None:
    store = eo.connect("memory://")

    @eo.once(store, scope="s", key="k", lease="400ms")
    def slow(k: str) -> bool:
        store.close()
        fast(k)
        time.sleep(1.0)
        return eo.current().lease_lost

    fast = eo.once(store, scope="fast", key="k", lease="200ms")(lambda k: None)
    assert slow("k") is False
    store.close()


def test_closing_a_store_takes_no_lease_from_a_running_handler() -> None:
    store = eo.connect("memory://")

    @eo.once(store, scope=eo.GLOBAL, key="k", lease="200ms")
    def slow(k: str) -> bool:
        store.close()
        time.sleep(0.6)
        with pytest.raises(eo.InProgress):
            contextvars.Context().run(eo.once(store, scope=eo.GLOBAL, key="k")(lambda k: None), k)
        return eo.current().lease_lost

    assert slow("k") is False
    store.close()


def test_closing_a_store_takes_no_lease_from_a_handler_that_starts_meanwhile() -> None:
    """It looked for leases, found none, and ended the heartbeat of a call that had begun after the look."""
    store = eo.connect("memory://", sweep_every=None)
    inside, leave = threading.Event(), threading.Event()

    @eo.once(store, scope="s", key="k", lease="200ms")
    def handler(k: str) -> None:
        inside.set()
        leave.wait(10)

    class Looked(set[Any]):
        """Between the look at it and what is done then, a call begins."""

        def __bool__(self) -> bool:
            found = len(self) > 0
            if not caller.ident:
                caller.start()
                inside.wait(0.5)
            return found

    caller = threading.Thread(target=handler, args=("k",))
    heartbeat = store.runtime.heartbeat
    heartbeat.cover(30_000_000)
    store.runtime.leased_runs = heartbeat._leased = Looked()
    store.close()
    assert inside.wait(60)
    assert heartbeat._thread is not None
    assert heartbeat._thread.is_alive()
    leave.set()
    caller.join(10)
    store.close()


async def test_closing_waits_for_a_round_trip_not_for_an_idle_moment() -> None:
    store = eo.Store(GroupedBackend(latency=0.01), sweep_every=None)
    stop = asyncio.Event()

    @eo.once(store, scope="s", key="n")
    async def handler(n: int) -> int:
        return n

    async def steady(start: int) -> None:
        number = start
        while not stop.is_set():
            await handler(number)
            number += 4

    callers = [asyncio.create_task(steady(n)) for n in range(4)]
    await asyncio.sleep(0.1)
    await asyncio.wait_for(store.aclose(), 5)
    stop.set()
    await asyncio.gather(*callers)


def test_an_event_loop_ends_even_if_its_last_submission_never_left(tmp_path: Path) -> None:
    """A drain that is cancelled before its first step must give its port back."""

    async def main() -> None:
        store = eo.connect(f"sqlite:///{tmp_path}/end.db", sweep_every=None)

        @eo.once(store, scope="s", key="k")
        async def handler(k: str) -> None:
            await asyncio.sleep(60)

        tasks = [asyncio.create_task(handler("a"))]
        await asyncio.sleep(0.2)
        tasks.append(asyncio.create_task(handler("b")))
        await asyncio.sleep(0)
        assert len(tasks) == 2

    ended = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    ended.start()
    ended.join(20)
    assert not ended.is_alive()


def test_override_of_a_closed_store_is_fine(store: eo.Store) -> None:
    with eo.connect("memory://") as other, override(store, other):
        store.close()
        assert eo.once(store, scope="s", key="k")(lambda k: 1)("k") == 1


def test_a_thread_that_cannot_start_costs_the_heartbeat_not_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    store = eo.connect("memory://")
    charge = eo.once(store, scope="s", key="k")(lambda k: k)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", lambda self: (_ for _ in ()).throw(RuntimeError("can't start")))
        assert charge("a") == "a"
    assert charge("b") == "b"
    assert store.runtime.heartbeat._thread is not None, "the next call tries again"
    store.close()


def test_a_heartbeat_that_cannot_reach_its_store_at_first_tries_again(caplog: pytest.LogCaptureFixture) -> None:
    """It ended, and no call looked whether it was there."""

    class Late(MemoryStoreBackend):
        failures = 1

        def sync_port(self) -> Any:
            if threading.current_thread().name == "effectonce-heartbeat" and self.failures:
                self.failures -= 1
                raise OSError("the token service is away for a moment")
            return super().sync_port()

    store = eo.Store(Late(), sweep_every=None)

    @eo.once(store, scope="s", key="k", lease="400ms")
    def handler(k: str) -> bool:
        run = eo.current()
        first, until = run.lease_requested_at, time.monotonic() + 10
        while run.lease_requested_at == first and time.monotonic() < until:
            time.sleep(0.01)
        return run.lease_requested_at > first

    handler("warm")
    assert "the heartbeat failed; it tries again" in caplog.text
    assert handler("k")
    store.close()
