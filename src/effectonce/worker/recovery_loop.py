"""`RecoveryLoop`: beside the handlers, now and then, it resumes the intents and sagas that others left unfinished.

Several processes may do that at once: a record is resumed by the one that claims it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from effectonce.core.cancellation import is_being_cancelled
from effectonce.core.failure_log import log_failed_attempt


@runtime_checkable
class Recoverable(Protocol):
    """A tool with sync and async operations, like `Intents`: one call for each kind."""

    def recover(self, *, stop: Callable[[], bool]) -> Any: ...

    async def arecover(self, *, stop: Callable[[], bool]) -> Any: ...


@runtime_checkable
class Resumable(Protocol):
    """A tool that is sync or async as a whole, like a `Saga`."""

    @property
    def is_async(self) -> bool: ...

    def resume(self, *, stop: Callable[[], bool]) -> Any: ...

    async def aresume(self, *, stop: Callable[[], bool]) -> Any: ...


@runtime_checkable
class RedeliveryChecked(Protocol):
    """A tool whose records, or whose provider's, must outlive every redelivery, like `Intents`."""

    def check(self, redelivery: float) -> None: ...


class RecoveryLoop:
    """A companion of a worker. What fails is tried again the next time: it must neither end the handlers, nor make a
    worker that stops wait for everything that is unfinished."""

    def __init__(self, unfinished: Sequence[Recoverable | Resumable], every: float) -> None:
        self._unfinished = unfinished
        self._every = every
        self._stopping = asyncio.Event()

    async def serve(self) -> None:
        self._stopping.clear()
        while True:
            for tool in self._unfinished:
                try:
                    await self._resume(tool)
                except (Exception, SystemExit, asyncio.CancelledError) as error:
                    if isinstance(error, asyncio.CancelledError) and is_being_cancelled():
                        raise
                    log_failed_attempt({"recovery": f"of {tool!r}"}, error, "is tried again", last=False)
            try:
                # At random, so that a fleet does not look for the same all at once.
                await asyncio.wait_for(self._stopping.wait(), self._every * random.uniform(0.5, 1.5))
                return
            except TimeoutError:
                pass

    def stop(self) -> None:
        self._stopping.set()

    async def _resume(self, tool: Recoverable | Resumable) -> None:
        stop = self._stopping.is_set
        if isinstance(tool, Recoverable):
            await asyncio.to_thread(tool.recover, stop=stop)
            await tool.arecover(stop=stop)
        elif tool.is_async:
            await tool.aresume(stop=stop)
        else:
            await asyncio.to_thread(tool.resume, stop=stop)
