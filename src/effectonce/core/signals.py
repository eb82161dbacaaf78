"""SIGTERM and SIGINT, for what serves until it is told to stop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


async def serve_until_signalled(serve: Callable[[], Awaitable[None]], stop: Callable[[], None]) -> bool:
    """``serve``, calling ``stop`` at each signal; the handlers are gone afterwards, whatever ended it. True where
    SIGINT was among them: somebody pressed Ctrl-C."""
    loop = asyncio.get_running_loop()
    came = set()

    def signalled(number: signal.Signals) -> None:
        came.add(number)
        stop()

    for each in _SIGNALS:
        loop.add_signal_handler(each, signalled, each)
    try:
        await serve()
    finally:
        for each in _SIGNALS:
            loop.remove_signal_handler(each)
    return signal.SIGINT in came
