"""Hooks that are added while others are added, and after a fork."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import effectonce as eo
from effectonce.backends.memory.store import MemoryStoreBackend
from effectonce.core import events
from effectonce.core.events import Events
from effectonce.core.store_runtime import StoreRuntime


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
        monkeypatch.setattr(events, "_adding", lock)
    else:
        told._opening = lock
    told.hooks = Read()
    second = threading.Thread(target=told.add_hook, args=(other,))
    told.add_hook(hook)
    second.join(10)
    assert told.hooks == (hook, other)
    told.add_hook(hook)
    assert told.hooks == (hook, other), "whoever is there is told once"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.parametrize(
    "make", [Events, lambda: StoreRuntime(MemoryStoreBackend(), sweep_every=None)], ids=["worker", "store"]
)
def test_a_fork_while_a_hook_is_added_does_not_hang_the_child(make: Any) -> None:
    told = make()
    with events._adding:
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # not the test runner's
            signal.alarm(10)
            told.add_hook(print)
            os._exit(0 if told.hooks == (print,) else 1)
    assert os.waitpid(child, 0)[1] == 0
