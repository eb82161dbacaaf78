"""A connection to a broker, opened at first use and reopened after it was lost."""

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


ClosableT = TypeVar("ClosableT", bound=Closable)
ConnectionT = TypeVar("ConnectionT", bound=OpenConnection)


@asynccontextmanager
async def closing(connection: ClosableT) -> AsyncIterator[ClosableT]:
    """Close ``connection`` at the end of the ``async with`` block."""
    try:
        yield connection
    finally:
        await connection.close()


class ReconnectingConnection(Generic[ConnectionT]):
    """Keeps one connection open: calls ``open`` at first use, and again when the connection is lost.

    Several tasks may call `get` at once: one of them opens the connection, and the others wait for it.
    """

    def __init__(self, open: Callable[[], Awaitable[ConnectionT]]) -> None:
        self._open = open
        self._opening = asyncio.Lock()
        self._current: ConnectionT | None = None
        self._failures = 0

    async def get(self) -> ConnectionT:
        """Return the open connection. Where opening fails, ``retry_after`` of the `BrokerUnavailable` grows from one
        failure to the next."""
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
        return longest * random.uniform(0.5, 1.0)  # random, so that processes do not all reconnect at the same moment

    async def close(self) -> None:
        """Close the connection if one is open. `get` opens another."""
        current, self._current = self._current, None
        if current is not None:
            await current.close()
