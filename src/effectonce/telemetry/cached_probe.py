"""Figures that a server is queried for: cached for a while, queried by one thread at a time, never waited for long."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Generic, TypeVar

from effectonce.contracts import Port
from effectonce.core.run_sync import run_sync
from effectonce.errors import StoreUnavailable
from effectonce.store import Store

T = TypeVar("T")

log = logging.getLogger("effectonce")


class CachedProbe(Generic[T]):
    """The result of ``read()``, not older than ``max_age`` seconds.

    One thread reads at a time, for all callers. A read that hangs on a dead server delays no caller, and no second
    thread is started beside it.
    """

    def __init__(self, what: str, read: Callable[[], T], max_age: float = 10.0) -> None:
        self.what = what
        self.error: Exception | None = None
        self._read = read
        self._max_age = max_age
        self._value: T | None = None
        self._read_at = float("-inf")
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._done: threading.Event | None = None  # set when the thread that reads now has finished

    def refresh(self) -> threading.Event | None:
        """Start to read, unless the value is new enough. Returns an event that is set when the read is done."""
        if self._pid != os.getpid():  # a fork: the thread that reads is in the parent
            self._reset()
        with self._lock:
            if time.monotonic() - self._read_at < self._max_age:
                return None
            if self._done is None:
                self._done = threading.Event()
                threading.Thread(target=self._run, name=f"effectonce {self.what}", daemon=True).start()
            return self._done

    def _run(self) -> None:
        value, error = None, None
        try:
            value = self._read()
        except Exception as raised:
            error = raised
            log.debug("effectonce could not read %s: %s", self.what, raised)
        with self._lock:
            self._value, self.error, self._read_at = value, error, time.monotonic()
            done, self._done = self._done, None
        if done is not None:
            done.set()

    @property
    def value(self) -> T | None:
        """The value; None where the last read failed, or is still running."""
        with self._lock:
            return None if self._done is not None else self._value


def refresh(probes: Iterable[CachedProbe[Any]], timeout: float = 2.0) -> Sequence[CachedProbe[Any]]:
    """Refresh all probes at the same time, and wait at most ``timeout`` seconds. Returns the probes."""
    probes = list(probes)
    running = [done for probe in probes if (done := probe.refresh()) is not None]
    deadline = time.monotonic() + timeout
    for done in running:
        done.wait(max(0.0, deadline - time.monotonic()))
    return probes


# -- queries


def query_store(store: Store, query: Callable[[Port], Coroutine[Any, Any, T]]) -> T:
    """Run ``query(port)`` on a connection of its own: one that hangs blocks no other user of the store."""
    port = store.runtime.backend.sync_port()
    try:
        return run_sync(query(port))
    finally:
        run_sync(port.close())


def run_in_loop(
    loop: asyncio.AbstractEventLoop | None, work: Callable[[], Coroutine[Any, Any, T]], timeout: float
) -> T:
    """Run ``work()`` on another thread's event loop. Raises `TimeoutError` where that takes too long."""
    if loop is None or loop.is_closed():
        raise StoreUnavailable("the event loop of the worker is not running; start the worker, then scrape again")
    future = asyncio.run_coroutine_threadsafe(work(), loop)
    try:
        return future.result(timeout)
    finally:
        future.cancel()
