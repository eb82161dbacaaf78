"""The threads in which views run: a bounded number at a time, and each page with a time limit.

Views call stores and brokers synchronously. The bounds keep a server that hangs from delaying visitors for long, and
from using up the threads that answer every other request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeVar

from starlette.responses import Response

from effectonce.core.run_sync import run_in_thread

T = TypeVar("T")

VIEW_TIMEOUT_S: Final = 10.0
MAX_RUNNING_VIEWS: Final = 8


class ViewTimeout(Exception):
    """A view gave no answer in time. An action that is refused like this has not begun."""


class ViewPool:
    """Runs views in threads: at most ``max_running`` at a time, and each is given up after ``timeout`` seconds."""

    def __init__(self, timeout: float = VIEW_TIMEOUT_S, max_running: int = MAX_RUNNING_VIEWS) -> None:
        self.timeout = timeout
        self._slots = asyncio.Semaphore(max_running)

    async def answer(self, view: Callable[[], Response], *, is_action: bool) -> Response:
        """Run ``view`` in a thread and return its response. Raises `ViewTimeout` if no slot was free in time.

        It also raises `ViewTimeout` for a page that takes too long, whose thread keeps the slot until the store gives
        up. An action that has begun has no time limit, because the operator must learn what it did.
        """
        deadline = asyncio.get_running_loop().time() + self.timeout
        try:
            async with asyncio.timeout_at(deadline):
                await self._slots.acquire()
        except TimeoutError:
            raise ViewTimeout from None
        running = start_view(view)
        running.add_done_callback(lambda _: self._slots.release())
        remaining = None if is_action else deadline - asyncio.get_running_loop().time()
        done, _ = await asyncio.wait({running}, timeout=remaining)
        if not done:
            raise ViewTimeout
        return running.result()


def start_view(work: Callable[[], T]) -> asyncio.Future[T]:
    """Run ``work`` in a thread of its own. Returns its future in this event loop."""
    future = asyncio.wrap_future(run_in_thread(work, "effectonce-view"))
    future.add_done_callback(_retrieve_exception)
    return future


def _retrieve_exception(future: asyncio.Future[Any]) -> None:
    """Mark the error as seen: asyncio would log it as never retrieved where the visitor has left."""
    if not future.cancelled():
        future.exception()
