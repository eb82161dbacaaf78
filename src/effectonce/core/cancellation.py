"""Cancelled tasks: whether this one is being cancelled, and what must not be left open although it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


def is_being_cancelled() -> bool:
    """Whether the running task is being cancelled. If not, a ``CancelledError`` comes from the code itself: it awaited
    something that was cancelled, or raised it."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop runs in this thread
        return False
    return task is not None and task.cancelling() > 0


async def finish_despite_cancellation(
    work: Coroutine[Any, Any, Any], on_cancel: Callable[[], Any] | None = None
) -> None:
    """Run ``work`` to its end in a task of its own. If the caller is cancelled meanwhile, call ``on_cancel``, and raise
    the cancellation at the end. An error of ``work`` is raised in any case, in place of the cancellation."""
    task = asyncio.get_running_loop().create_task(work)
    cancellation: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancellation = error
            if on_cancel is not None:
                on_cancel()
    task.result()
    if cancellation is not None:
        raise cancellation
