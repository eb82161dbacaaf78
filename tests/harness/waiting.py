"""Waiting by polling: for another process, a server, a row. On a busy machine that may take long."""

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any


def until(find: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Poll ``find`` until it returns something true, and return that."""
    deadline = time.monotonic() + seconds
    while not (found := find()):
        assert time.monotonic() < deadline, f"still waiting after {seconds:g} s"
        time.sleep(0.02)
    return found


async def auntil(find: Callable[[], Any], seconds: float = 60.0) -> Any:
    """`until`, in an event loop; ``find`` may be async, too."""
    async with asyncio.timeout(seconds):
        while True:
            found = find()
            if inspect.isawaitable(found):
                found = await found
            if found:
                return found
            await asyncio.sleep(0.005)
