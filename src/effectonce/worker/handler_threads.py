"""`HandlerThreads`: where sync handlers run."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from contextvars import Context
from typing import Any


class HandlerThreads:
    """Daemon threads for sync handlers: one that never returns must not keep the process from ending.

    The event loop and the threads share only the queue of work. All else is touched on the loop: `submit`, `close`, and
    `_deliver`, which a thread schedules there. A thread that is still running when the loop ends loses its result: the
    delivery was given back before.
    """

    def __init__(self, limit: int, name: str) -> None:
        self._limit = limit
        self._name = name
        self._work: queue.SimpleQueue[tuple[Any, ...] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._busy = 0

    def submit(
        self, loop: asyncio.AbstractEventLoop, context: Context, function: Callable[[Any], Any], work: Any
    ) -> asyncio.Future[tuple[BaseException | None, Any]]:
        """Run ``function`` on a thread. The future holds what it raised and what it returned, as a pair: a future
        cannot hold a StopIteration."""
        future: asyncio.Future[tuple[BaseException | None, Any]] = loop.create_future()
        self._busy += 1
        if self._busy > len(self._threads) and len(self._threads) < self._limit:
            thread = threading.Thread(target=self._run, name=f"effectonce {self._name}", daemon=True)
            thread.start()
            self._threads.append(thread)
        self._work.put((loop, future, context, function, work))
        return future

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            loop, future, context, function, work = item
            outcome: tuple[BaseException | None, Any]
            try:
                outcome = (None, context.run(function, work))
            except BaseException as error:
                outcome = (error, None)
            try:
                loop.call_soon_threadsafe(self._deliver, future, outcome)
            except RuntimeError:  # the loop has ended: the delivery was given back
                return
            del item, future, context, work, outcome  # nothing of it is kept until the next comes

    def _deliver(self, future: asyncio.Future[Any], outcome: tuple[BaseException | None, Any]) -> None:
        self._busy -= 1
        if not future.done():
            future.set_result(outcome)

    def close(self) -> None:
        """Let each thread end after its present work. Does not wait."""
        for _ in self._threads:
            self._work.put(None)
