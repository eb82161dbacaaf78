"""Beside the handlers, now and then: go on with the intents and sagas that another process has left behind."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from effectonce.errors import EffectOnceError

log = logging.getLogger("effectonce")


@runtime_checkable
class Recoverable(Protocol):
    """As `Intents` are: each call sees to the operations of one colour."""

    def recover(self) -> Any: ...

    async def arecover(self) -> Any: ...


@runtime_checkable
class Resumable(Protocol):
    """As a `Saga` is, of one colour as a whole."""

    @property
    def is_async(self) -> bool: ...

    def resume(self) -> Any: ...

    async def aresume(self) -> Any: ...


class Upkeep:
    """A companion of a worker. What fails is tried again the next time: it must not end the handlers."""

    def __init__(self, left: Sequence[Recoverable | Resumable], every: float) -> None:
        self._left = left
        self._every = every
        self._over = asyncio.Event()

    async def serve(self) -> None:
        self._over.clear()
        while True:
            for each in self._left:
                try:
                    await _go_on(each)
                except EffectOnceError as error:
                    log.warning("what was left of %r could not be gone on with: %s", each, error)
            try:
                # At random, so that a fleet does not look for the same all at once.
                await asyncio.wait_for(self._over.wait(), self._every * random.uniform(0.5, 1.5))
                return
            except TimeoutError:
                pass

    def stop(self) -> None:
        self._over.set()


async def _go_on(left: Recoverable | Resumable) -> None:
    if isinstance(left, Recoverable):
        await asyncio.to_thread(left.recover)
        await left.arecover()
    elif left.is_async:
        await left.aresume()
    else:
        await asyncio.to_thread(left.resume)
