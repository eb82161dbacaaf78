"""SIGTERM and SIGINT, for what serves until it is told to stop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


async def serve_until_signalled(serve: Callable[[], Awaitable[None]], stop: Callable[[], None]) -> None:
    """``serve``, calling ``stop`` at each signal; the handlers are gone afterwards, whatever ended it."""
    loop = asyncio.get_running_loop()
    for each in _SIGNALS:
        loop.add_signal_handler(each, stop)
    try:
        await serve()
    finally:
        for each in _SIGNALS:
            loop.remove_signal_handler(each)
