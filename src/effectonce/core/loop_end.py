"""Closing what belongs to an event loop when the loop ends, as `asyncio.run` does with a program's async generators."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import Final

MAX_CLOSE_S: Final = 1.0
"""How long the end of a loop waits for a server that does not answer."""


def call_at_loop_end(close: Callable[[], Awaitable[None]]) -> AsyncGenerator[None, None]:
    """Await ``close`` when the running event loop ends, for at most `MAX_CLOSE_S`, and ignore its errors.

    Connections that are left open would be found by the garbage collector, and their drivers print that on the way out.
    Keep what is returned as long as the connections: if it is garbage-collected earlier, ``close`` is called then. A
    loop that is closed without `asyncio.AbstractEventLoop.shutdown_asyncgens` never calls it.
    """

    async def wait_for_end() -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            with suppress(Exception):
                async with asyncio.timeout(MAX_CLOSE_S):
                    await close()

    waiting = wait_for_end()
    with suppress(StopIteration):
        waiting.asend(None).send(None)  # up to its `yield`: now the loop knows it
    return waiting
