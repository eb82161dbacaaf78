"""Queries of servers for scrapes and health checks: their results are cached, and no caller waits long for them."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from effectonce.contracts import Port
from effectonce.core.run_sync import run_in_thread, run_sync
from effectonce.errors import StoreUnavailable
from effectonce.store import Store

T = TypeVar("T")


class CachedProbe(Generic[T]):
    """Calls ``read()`` in a thread, and caches its result for ``max_age_s`` seconds.

    One thread reads at a time, for all callers. A read that hangs on a dead server delays no caller, and no second
    thread is started beside it.
    """

    def __init__(self, what: str, read: Callable[[], T], max_age_s: float = 10.0) -> None:
        self.what = what
        self._read = read
        self._max_age_s = max_age_s
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._last_read: Future[T] | None = None
        self._ended_at = 0.0

    def refresh(self) -> Future[T]:
        """Start to read, unless the last read is recent enough or still running. Returns the future of the read."""
        if self._pid != os.getpid():  # a fork: the thread that reads is in the parent
            self._reset()
        with self._lock:
            last = self._last_read
            if last is None or (last.done() and time.monotonic() - self._ended_at >= self._max_age_s):
                last = self._last_read = run_in_thread(self._read_once, f"effectonce {self.what}")
            return last

    def _read_once(self) -> T:
        try:
            return self._read()
        finally:
            self._ended_at = time.monotonic()

    @property
    def value(self) -> T | None:
        """The value; None where the last read failed, or is still running."""
        last = self._last_read
        return last.result() if last is not None and last.done() and last.exception() is None else None

    @property
    def error(self) -> BaseException | None:
        """The error of the last read; None where it succeeded, or is still running."""
        last = self._last_read
        return last.exception() if last is not None and last.done() else None


def refresh(probes: Iterable[CachedProbe[Any]], timeout: float = 2.0) -> None:
    """Refresh all probes at the same time, and wait at most ``timeout`` seconds."""
    concurrent.futures.wait([probe.refresh() for probe in probes], timeout)


# -- queries


def query_store(store: Store, query: Callable[[Port], Coroutine[Any, Any, T]]) -> T:
    """Run ``query(port)`` on a connection of its own: a query that hangs blocks no other user of the store."""
    port = store.runtime.backend.sync_port()
    try:
        return run_sync(query(port))
    finally:
        run_sync(port.close())


def run_in_loop(
    loop: asyncio.AbstractEventLoop | None, work: Callable[[], Coroutine[Any, Any, T]], timeout: float
) -> T:
    """Run ``work()`` on another thread's event loop. Raises `TimeoutError` if that takes too long."""
    if loop is None or loop.is_closed():
        raise StoreUnavailable("the event loop of the worker is not running; start the worker, then scrape again")
    future = asyncio.run_coroutine_threadsafe(work(), loop)
    try:
        return future.result(timeout)
    finally:
        future.cancel()
