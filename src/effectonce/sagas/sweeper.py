"""A thread that goes on with the sagas that others left behind."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

from effectonce.core.store_runtime import log
from effectonce.store import Store


class Resumable(Protocol):
    """What a sweeper needs of its `Saga`."""

    name: str
    scope: str
    store: Store

    @property
    def is_async(self) -> bool: ...

    def resume(self, *, stop: Callable[[], bool]) -> Any: ...

    async def aresume(self, *, stop: Callable[[], bool]) -> Any: ...


class Sweeper:
    """The thread of `Saga.sweeper`. It ends with its ``with``, when the saga that is on its way has ended (in an event
    loop: those few); the others are left to the next."""

    def __init__(self, saga: Resumable, every: float) -> None:
        self._saga = saga
        self._every = every
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._sweep, name="effectonce-sagas", daemon=True)

    def _sweep(self) -> None:
        process = os.getpid()
        while True:
            try:
                if self._saga.is_async:
                    asyncio.run(self._asweep())
                else:
                    self._saga.resume(stop=self._end.is_set)
            except BaseException as error:  # F37: nobody sees it where a thread ends
                if os.getpid() != process:  # a step has forked, and its child ends
                    raise
                log.warning("sagas %s could not be resumed: %s: %s", self._saga.name, type(error).__name__, error)
                detail = str(error) or type(error).__name__
                self._saga.store.runtime.emit("sweep_failed", self._saga.scope, detail=detail)
            if self._end.wait(self._every):
                return

    async def _asweep(self) -> None:
        try:
            await self._saga.aresume(stop=self._end.is_set)
        finally:
            await self._saga.store.runtime.aclose()

    def __enter__(self) -> Sweeper:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._end.set()
        self._thread.join()
