"""`run_sync`: runs a coroutine that never suspends, on the caller's own thread. `run_in_thread`: calls a function on
another.

Every algorithm is written once as ``async def`` over injected ports. Sync code runs it from here with sync ports,
whose coroutines return without suspending: no event loop, no background thread, no second copy.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from effectonce.errors import SyncAsyncMismatch

T = TypeVar("T")


def run_sync(coro: Coroutine[Any, Any, T]) -> T:
    """Return the result of ``coro``. It must not suspend: one that does was given an async port by mistake."""
    try:
        coro.send(None)
    except StopIteration as stop:
        value: T = stop.value
        return value
    coro.close()
    raise SyncAsyncMismatch("a sync call reached something that only works inside an event loop; use the async form")


async def pause_thread(seconds: float) -> None:
    """What a coroutine that `run_sync` drives awaits in place of `asyncio.sleep`: it blocks the thread."""
    time.sleep(seconds)  # noqa: ASYNC251  # no event loop runs on this thread


def refuse_in_event_loop(reason: str) -> None:
    """Raise `SyncAsyncMismatch` with ``reason`` where an event loop is running, which the caller would block."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise SyncAsyncMismatch(reason)


def run_in_thread(work: Callable[[], T], name: str) -> Future[T]:
    """Run ``work`` in a daemon thread of its own, which does not keep the process from ending. Returns its future."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # cancelling the wait does not end the work

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
