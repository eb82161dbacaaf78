"""How long a page is waited for. Stores and brokers are asked by sync calls, in threads: one that hangs must keep
nobody waiting for long, nor take the threads from which everything else is answered."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

from starlette.responses import Response

T = TypeVar("T")

PATIENCE: Final = 10.0
"""Seconds after which a page that is not there is given up."""
AT_ONCE: Final = 8
"""How many views run at a time; the others wait for their turn."""


class Overdue(Exception):
    """There was no answer in time. An action that was refused like this has not begun."""


class Patience:
    """Where views run."""

    def __init__(self, seconds: float = PATIENCE, at_once: int = AT_ONCE) -> None:
        self.seconds = seconds
        self._turns = asyncio.Semaphore(at_once)

    async def answer(self, view: Callable[[], Response], *, acts: bool) -> Response:
        """What ``view`` answers; `Overdue` where its turn has not come in time.

        A page that takes too long is `Overdue` as well: nobody waits for the rest of it, and it keeps its turn until
        the store gives up. What ``acts`` is waited for to its end: somebody has to be told what became of it.
        """
        until = asyncio.get_running_loop().time() + self.seconds
        try:
            async with asyncio.timeout_at(until):
                await self._turns.acquire()
        except TimeoutError:
            raise Overdue from None
        running = aside(view)
        running.add_done_callback(lambda _: self._turns.release())
        left = None if acts else until - asyncio.get_running_loop().time()
        done, _ = await asyncio.wait({running}, timeout=left)
        if not done:
            raise Overdue
        return running.result()


def aside(work: Callable[[], T]) -> asyncio.Future[T]:
    """What ``work`` gives, in a thread of its own that does not keep the process from ending."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    future.add_done_callback(_looked_at)

    def settle(settled: Callable[[Any], None], what: Any) -> None:
        if not future.done():
            settled(what)

    def run() -> None:
        try:
            told = (future.set_result, work())
        except Exception as error:
            told = (future.set_exception, error)  # type: ignore[assignment]
        try:
            loop.call_soon_threadsafe(settle, *told)
        except RuntimeError:  # the loop is closed: nobody waits any more
            pass

    threading.Thread(target=run, name="effectonce-view", daemon=True).start()
    return future


def _looked_at(future: asyncio.Future[Any]) -> None:
    """So that nobody complains of an error whose visitor has gone."""
    if not future.cancelled():
        future.exception()
