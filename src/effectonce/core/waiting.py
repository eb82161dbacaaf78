"""Waiting for another delivery of the same key: its settlement wakes the waiters, and each of them also polls.

A wake-up is only a hint. A waiter always asks the store again, so a wake-up that comes late, twice or never costs time,
not correctness.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Final

from .run_sync import refuse_in_event_loop

Identity = tuple[str, str]

FIRST_POLL_S: Final = 0.02  # the pause between two claims of a waiter; it doubles each time
MAX_POLL_S: Final = 1.0


class Waiters:
    """The calls of this process that wait for another delivery, sync and async ones, by the identity they wait for.

    Any thread may call this. Wake-ups are called outside of the lock: one of them could register or remove itself.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.waiting: dict[Identity, set[Callable[[], None]]] = {}

    def add(self, identity: Identity, wake: Callable[[], None]) -> None:
        with self._lock:
            self.waiting.setdefault(identity, set()).add(wake)

    def remove(self, identity: Identity, wake: Callable[[], None]) -> None:
        with self._lock:
            wakes = self.waiting.get(identity)
            if wakes is not None:
                wakes.discard(wake)
                if not wakes:
                    del self.waiting[identity]

    def wake(self, identity: Identity) -> None:
        """Make every call that waits for ``identity`` ask the store now."""
        if identity not in self.waiting:  # take no lock: a signal handler may call this while its own thread holds it
            return
        with self._lock:
            wakes = tuple(self.waiting.get(identity, ()))
        for wake in wakes:
            wake()


class ThreadWakeUp:
    """Wakes a thread, which blocks in `wait`."""

    def __init__(self) -> None:
        refuse_in_event_loop(
            "wait= on a sync function would block the running event loop; make the handler `async def`, "
            "or call it in a thread (asyncio.to_thread)"
        )
        self._event = threading.Event()
        self.wake = self._event.set

    async def wait(self, seconds: float) -> None:
        self._event.wait(seconds)

    def clear(self) -> None:
        self._event.clear()


class TaskWakeUp:
    """Wakes a task, which suspends in `wait`. Any thread may call `wake`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._set = False
        self._future: asyncio.Future[None] | None = None

    def wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:  # the loop is closed, and its waiters are gone
            pass

    def _wake(self) -> None:
        self._set = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def wait(self, seconds: float) -> None:
        if self._set:
            return
        self._future = self._loop.create_future()
        timer = self._loop.call_later(seconds, self._wake)
        try:
            await self._future
        finally:
            timer.cancel()
            self._future = None

    def clear(self) -> None:
        self._set = False


WakeUp = ThreadWakeUp | TaskWakeUp
