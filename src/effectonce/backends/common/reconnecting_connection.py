"""One connection for one user of it: opened when first asked for, and again after it was lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, Generic, Protocol, TypeVar

from effectonce.errors import BrokerUnavailable

FIRST_BACKOFF_S: Final = 0.2
MAX_BACKOFF_S: Final = 15.0


class Closable(Protocol):
    async def close(self) -> None: ...


class OpenConnection(Closable, Protocol):
    @property
    def lost(self) -> Exception | None:
        """Why the connection can no longer be used; None while it can."""
        ...


ClosableT = TypeVar("ClosableT", bound=Closable)
ConnectionT = TypeVar("ConnectionT", bound=OpenConnection)


@asynccontextmanager
async def closing(connection: ClosableT) -> AsyncIterator[ClosableT]:
    """Use ``connection`` once, and close it."""
    try:
        yield connection
    finally:
        await connection.close()


class ReconnectingConnection(Generic[ConnectionT]):
    """The connection that ``open`` makes, and the next one after that was lost.

    Several tasks may ask for it at once; one of them opens it, and the others wait for that.
    """

    def __init__(self, open: Callable[[], Awaitable[ConnectionT]]) -> None:
        self._open = open
        self._opening = asyncio.Lock()
        self._current: ConnectionT | None = None
        self._failures = 0

    async def get(self) -> ConnectionT:
        """The open connection. Where opening fails, the error's ``retry_after`` grows from one failure to the next."""
        current = self._current
        if current is not None and current.lost is None:
            return current
        async with self._opening:
            if self._current is None or self._current.lost is not None:
                await self.close()
                try:
                    self._current = await self._open()
                except BrokerUnavailable as error:
                    error.retry_after = self._next_backoff()
                    raise
                self._failures = 0
            return self._current

    def _next_backoff(self) -> float:
        longest = min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** min(self._failures, 10))
        self._failures += 1
        return longest * random.uniform(0.5, 1.0)  # at random, so that a fleet does not come back as one

    async def close(self) -> None:
        """Close the connection where there is one; `get` opens another."""
        current, self._current = self._current, None
        if current is not None:
            await current.close()
