"""Beside the handlers, now and then: go on with the intents and sagas that another process has left behind."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

log = logging.getLogger("effectonce")


@runtime_checkable
class Recoverable(Protocol):
    """As `Intents` are: each call sees to the operations of one colour."""

    def recover(self, *, stop: Callable[[], bool]) -> Any: ...

    async def arecover(self, *, stop: Callable[[], bool]) -> Any: ...


@runtime_checkable
class Resumable(Protocol):
    """As a `Saga` is, of one colour as a whole."""

    @property
    def is_async(self) -> bool: ...

    def resume(self, *, stop: Callable[[], bool]) -> Any: ...

    async def aresume(self, *, stop: Callable[[], bool]) -> Any: ...


class Upkeep:
    """A companion of a worker. What fails is tried again the next time: it must not end the handlers, nor keep a worker
    that stops waiting for all that is left."""

    def __init__(self, left: Sequence[Recoverable | Resumable], every: float) -> None:
        self._left = left
        self._every = every
        self._over = asyncio.Event()

    async def serve(self) -> None:
        self._over.clear()
        while True:
            for each in self._left:
                try:
                    await self._go_on(each)
                except (Exception, SystemExit, asyncio.CancelledError) as error:
                    if isinstance(error, asyncio.CancelledError) and _cancelled():
                        raise
                    log.warning(
                        "what was left of %r could not be gone on with: %s: %s", each, type(error).__name__, error
                    )
            try:
                # At random, so that a fleet does not look for the same all at once.
                await asyncio.wait_for(self._over.wait(), self._every * random.uniform(0.5, 1.5))
                return
            except TimeoutError:
                pass

    def stop(self) -> None:
        self._over.set()

    async def _go_on(self, left: Recoverable | Resumable) -> None:
        stop = self._over.is_set
        if isinstance(left, Recoverable):
            await asyncio.to_thread(left.recover, stop=stop)
            await left.arecover(stop=stop)
        elif left.is_async:
            await left.aresume(stop=stop)
        else:
            await asyncio.to_thread(left.resume, stop=stop)


def _cancelled() -> bool:
    """Whether it is we who are cancelled, and not something inside of what was gone on with."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
