"""Hooks that are added while others are added, and after a fork."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

import effectonce as eo
from effectonce.backends.memory.store import MemoryStoreBackend
from effectonce.core import events
from effectonce.core.events import Events
from effectonce.core.store_runtime import StoreRuntime
from effectonce.testing import ManualClock
from tests.core.grouped import GroupedBackend

from .conftest import HandlerForm


class Lock:
    """Says when somebody has to wait for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.awaited = threading.Event()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self.awaited.set()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@pytest.mark.parametrize(
    "make", [Events, lambda hooks: eo.Store(MemoryStoreBackend(), hooks=hooks)], ids=["worker", "store"]
)
def test_two_threads_that_add_a_hook_at_once_add_both(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second comes when the first has read the hooks and not yet written them."""
    lock = Lock()

    class Read(tuple[Any, ...]):
        def __iter__(self) -> Iterator[Any]:
            if second.ident is None:
                second.start()
                while second.is_alive() and not lock.awaited.is_set():
                    pass
            return super().__iter__()

    def hook(event: eo.Event) -> None: ...

    def other(event: eo.Event) -> None: ...

    told = make(())
    if isinstance(told, Events):
        monkeypatch.setattr(events, "_hooks_lock", lock)
    else:
        told._opening = lock
    told.hooks = Read()
    second = threading.Thread(target=told.add_hook, args=(other,))
    told.add_hook(hook)
    second.join(10)
    assert told.hooks == (hook, other)
    told.add_hook(hook)
    assert told.hooks == (hook, other), "each hook is called once"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.parametrize(
    "make", [Events, lambda: StoreRuntime(MemoryStoreBackend(), sweep_every=None)], ids=["worker", "store"]
)
def test_a_fork_while_a_hook_is_added_does_not_hang_the_child(make: Any) -> None:
    told = make()
    with events._hooks_lock:
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # not the test runner's
            signal.alarm(10)
            told.add_hook(print)
            os._exit(0 if told.hooks == (print,) else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("mode", ["lease", "seen"])
def test_a_hook_added_while_a_handler_runs_gets_its_whole_duration(
    store: eo.Store, clock: ManualClock, form: HandlerForm, mode: Any
) -> None:
    events = list[eo.Event]()

    @form.once(store, scope="charge", key="k", mode=mode)
    def charge(k: str) -> None:
        clock.advance(3)
        store.runtime.hooks = (events.append,)
        clock.advance(4)
        if k == "broken":
            raise ValueError(k)

    store.runtime.hooks = ()
    charge("p1")
    store.runtime.hooks = ()
    with pytest.raises(ValueError, match="broken"):
        charge("broken")
    assert [(event.kind, event.seconds) for event in events] == [("completed", 7.0), ("released", 7.0)]


async def test_a_hook_that_replaces_another_in_mid_run_gets_the_duration() -> None:
    """And not when the run began, as if that were how long it took."""
    store, events = eo.Store(GroupedBackend(0.05), hooks=[lambda event: None], sweep_every=None), list[eo.Event]()

    @eo.once(store, scope="charge", key="k")
    async def charge(k: str) -> None:
        store.runtime.hooks = ()
        asyncio.get_running_loop().call_later(0.02, store.add_hook, events.append)

    await charge("p1")
    assert [(event.kind, 0.0 < event.seconds < 5.0) for event in events] == [("completed", True)]
    await store.aclose()


@pytest.mark.parametrize("value", ["stored", object()], ids=["stored", "not stored"])
def test_every_event_about_the_end_of_a_run_has_its_duration(
    store: eo.Store, clock: ManualClock, events: list[eo.Event], form: HandlerForm, value: Any
) -> None:
    """What is found out before the settlement too: it was told with a time of 0."""

    @form.once(store, scope="charge", key="k", returns=Any)
    def charge(k: str):  # type: ignore[no-untyped-def]
        clock.advance(7)
        return value

    charge("p1")
    ends = ["completed"] if value == "stored" else ["result_not_stored", "completed"]
    assert [(event.kind, event.seconds) for event in events] == [("claimed", 0.0), *((kind, 7.0) for kind in ends)]


def test_a_duplicate_that_may_not_run_emits_why(store: eo.Store, events: list[eo.Event], form: HandlerForm) -> None:
    in_another_thread = ThreadPoolExecutor(1)

    @form.once(store, scope="charge", key="k", fingerprint="amount", on_error="doubt", permanent=(ValueError,))
    def charge(k: str, amount: int) -> None:
        if k == "running":
            with pytest.raises(eo.InProgress):
                in_another_thread.submit(charge, k, amount).result()
        elif k == "failed":
            raise ValueError(k)
        elif k == "in doubt":
            raise OSError(k)

    def deliver(k: str, amount: int = 1) -> None:
        with suppress(ValueError, OSError, eo.EffectOnceError):
            charge(k, amount)

    for key in ("running", "failed", "in doubt", "other payload"):
        deliver(key)
    deliver("failed")
    deliver("in doubt")
    deliver("other payload", amount=2)
    in_another_thread.shutdown()
    duplicates = [event for event in events if event.kind not in ("claimed", "completed")]
    assert [(event.kind, event.key) for event in duplicates] == [
        ("in_progress", "running"),
        ("failed", "failed"),  # the handler raised,
        ("in_doubt", "in doubt"),
        ("failed", "failed"),  # and these are the duplicates
        ("in_doubt", "in doubt"),
        ("mismatch", "other payload"),
    ]


def test_each_duplicate_of_what_is_done_emits_that_it_was_replayed(
    store: eo.Store, events: list[eo.Event], form: HandlerForm
) -> None:
    charge = form.once(store, scope="charge", key="k")(lambda k: 7)
    assert [charge("p1") for _ in range(3)] == [7, 7, 7]
    assert [(event.kind, event.key) for event in events] == [
        ("claimed", "p1"),
        ("completed", "p1"),
        ("replayed", "p1"),
        ("replayed", "p1"),
    ]


def test_a_hook_that_raises_is_logged_with_its_own_error_alone(caplog: pytest.LogCaptureFixture) -> None:
    def broken(event: eo.Event) -> None:
        raise RuntimeError(event.kind)

    store = eo.Store(MemoryStoreBackend(), hooks=[broken], sweep_every=None)
    eo.once(store, scope="charge", key="k")(lambda k: None)("p1")
    errors = [record.exc_info[1] for record in caplog.records if record.exc_info]
    assert [(str(error), error and error.__context__) for error in errors] == [("claimed", None), ("completed", None)]


def test_hooks_that_raise_change_no_outcome(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    def broken(event: eo.Event) -> None:
        raise RuntimeError("sink")

    store = eo.Store(MemoryStoreBackend(clock=clock), hooks=[broken])
    assert eo.once(store, scope="charge", key="k")(lambda k: 7)("p1") == 7
    assert "hook raised" in caplog.text
