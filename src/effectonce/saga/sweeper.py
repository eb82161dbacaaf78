"""A thread that goes on with the sagas that others left behind."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import Any, Protocol

from effectonce.core.engine import log
from effectonce.store import Store


class Resumable(Protocol):
    """What a sweeper needs of its `Saga`."""

    name: str
    scope: str
    store: Store

    @property
    def is_async(self) -> bool: ...

    def resume(self) -> Any: ...

    async def aresume(self) -> Any: ...


class Sweeper:
    """The thread of `Saga.sweeper`. It ends with its ``with``, when the sagas that are on their way have ended."""

    def __init__(self, saga: Resumable, every: float) -> None:
        self._saga = saga
        self._every = every
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._sweep, name="effectonce-sagas", daemon=True)

    def _sweep(self) -> None:
        while True:
            try:
                if self._saga.is_async:
                    asyncio.run(self._asweep())
                else:
                    self._saga.resume()
            except Exception as error:
                log.warning("sagas %s could not be resumed: %s", self._saga.name, error)
                self._saga.store.engine.emit("sweep_failed", self._saga.scope, detail=str(error))
            if self._end.wait(self._every):
                return

    async def _asweep(self) -> None:
        try:
            await self._saga.aresume()
        finally:
            await self._saga.store.engine.aclose()

    def __enter__(self) -> Sweeper:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._end.set()
        self._thread.join()
