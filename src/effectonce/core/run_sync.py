"""`run_sync`: runs a coroutine that never suspends, on the caller's own thread.

Every algorithm is written once as ``async def`` over injected ports. Sync code runs it from here with sync ports,
whose coroutines return without suspending: no event loop, no background thread, no second copy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
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


def refuse_in_event_loop(reason: str) -> None:
    """Raise `SyncAsyncMismatch` with ``reason`` where an event loop is running, which the caller would block."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise SyncAsyncMismatch(reason)
