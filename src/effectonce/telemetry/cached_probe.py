"""Figures that somebody has to be asked for: kept for a while, asked for once at a time, and never waited for long."""

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


class Reading(Generic[T]):
    """What ``read()`` gave, not longer than ``keep`` seconds ago.

    However many ask, it is read by one thread at a time; one that hangs on a dead server holds up nobody else, and no
    second one is started beside it.
    """

    def __init__(self, what: str, read: Callable[[], T], keep: float = 10.0) -> None:
        self.what = what
        self.error: Exception | None = None
        self._read = read
        self._keep = keep
        self._value: T | None = None
        self._read_at = float("-inf")
        self._fresh()

    def _fresh(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._done: threading.Event | None = None  # of the thread that reads now

    def refresh(self) -> threading.Event | None:
        """Begin to read, unless what is there is new enough; what is set when that is done."""
        if self._pid != os.getpid():  # the thread that reads is the parent's
            self._fresh()
        with self._lock:
            if time.monotonic() - self._read_at < self._keep:
                return None
            if self._done is None:
                self._done = threading.Event()
                threading.Thread(target=self._run, name=f"effectonce {self.what}", daemon=True).start()
            return self._done

    def _run(self) -> None:
        value, error = None, None
        try:
            value = self._read()
        except Exception as failed:
            error = failed
            log.debug("effectonce could not read %s: %s", self.what, failed)
        with self._lock:
            self._value, self.error, self._read_at = value, error, time.monotonic()
            done, self._done = self._done, None
        if done is not None:
            done.set()

    @property
    def value(self) -> T | None:
        """What was read; None where that failed, or is too old since nobody answers."""
        with self._lock:
            return None if self._done is not None else self._value


def refresh(readings: Iterable[Reading[Any]], patience: float = 2.0) -> Sequence[Reading[Any]]:
    """Bring all of them up to date, at the same time and in at most ``patience`` seconds; give them back."""
    readings = list(readings)
    begun = [done for each in readings if (done := each.refresh()) is not None]
    deadline = time.monotonic() + patience
    for done in begun:
        done.wait(max(0.0, deadline - time.monotonic()))
    return readings


# -- asking


def ask(store: Store, question: Callable[[Port], Coroutine[Any, Any, T]]) -> T:
    """What ``question(port)`` gives, on a connection of its own: one that hangs is in nobody's way."""
    port = store.runtime.backend.sync_port()
    try:
        return run_sync(question(port))
    finally:
        run_sync(port.close())


def in_loop(loop: asyncio.AbstractEventLoop | None, work: Callable[[], Coroutine[Any, Any, T]], patience: float) -> T:
    """What ``work()`` gives on another thread's event loop, which may be busy, or not answer at all."""
    if loop is None or loop.is_closed():
        raise StoreUnavailable("it is not running")
    future = asyncio.run_coroutine_threadsafe(work(), loop)
    try:
        return future.result(patience)
    finally:
        future.cancel()
