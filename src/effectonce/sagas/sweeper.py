"""`SagaSweeper`: a thread that resumes the sagas that other processes left unfinished."""

from __future__ import annotations

import asyncio
import os
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any

from effectonce.core.store_runtime import log

if TYPE_CHECKING:
    from .saga import Saga


class SagaSweeper:
    """The thread of `Saga.sweeper`. Leaving its ``with`` ends it, after the saga that it is running (in an event loop:
    after those few); the others are left to the next sweep."""

    def __init__(self, saga: Saga[Any], interval_s: float) -> None:
        self._saga = saga
        self._interval_s = interval_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._sweep, name="effectonce-sagas", daemon=True)

    def _sweep(self) -> None:
        process = os.getpid()
        while True:
            try:
                if self._saga.is_async:
                    asyncio.run(self._asweep())
                else:
                    self._saga.resume(stop=self._stopping.is_set)
            except BaseException as error:  # F37: a sweeper that fails in silence; this one reports it and goes on
                if os.getpid() != process:  # a step has forked, and this is its child
                    raise
                log.warning(
                    "could not resume sagas %s, will try again: %s: %s", self._saga.name, type(error).__name__, error
                )
                detail = str(error) or type(error).__name__
                self._saga.store.runtime.emit("sweep_failed", self._saga.scope, detail=detail)
            if self._stopping.wait(self._interval_s):
                return

    async def _asweep(self) -> None:
        try:
            await self._saga.aresume(stop=self._stopping.is_set)
        finally:
            await self._saga.store.runtime.aclose()

    def __enter__(self) -> SagaSweeper:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stopping.set()
        self._thread.join()
