"""One connection for one user of it: opened when first asked for, and again after it was lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, Generic, Protocol, TypeVar

from effectonce.errors import BrokerUnavailable

LONGEST_BACKOFF: Final = 15.0


class Live(Protocol):
    @property
    def lost(self) -> Exception | None:
        """Why it is no longer there."""
        ...

    async def close(self) -> None: ...


T = TypeVar("T", bound=Live)


class Link(Generic[T]):
    """Several tasks may ask for the connection at once; it is opened by one of them."""

    def __init__(self, open: Callable[[], Awaitable[T]]) -> None:
        self._open = open
        self._opening = asyncio.Lock()
        self._live: T | None = None
        self._failures = 0

    async def connection(self) -> T:
        """The connection. Where it cannot be had, the error's ``retry_after`` grows from one failure to the next."""
        live = self._live
        if live is not None and live.lost is None:
            return live
        async with self._opening:
            if self._live is None or self._live.lost is not None:
                await self.close()
                try:
                    self._live = await self._open()
                except BrokerUnavailable as error:
                    self._failures = min(self._failures + 1, 8)
                    error.retry_after = min(LONGEST_BACKOFF, 0.1 * 2**self._failures) * random.uniform(0.5, 1.0)
                    raise
                self._failures = 0
            return self._live

    async def close(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            await live.close()
