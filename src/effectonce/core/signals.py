"""SIGTERM and SIGINT: `serve_until_signalled` lets them stop a worker or a relay."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


async def serve_until_signalled(serve: Callable[[], Awaitable[None]], stop: Callable[[], None]) -> bool:
    """Run ``serve()``, and call ``stop()`` at each SIGTERM and SIGINT. Returns whether there was a SIGINT (Ctrl-C).

    The handlers of the signals are installed for that time only. That takes the main thread (`ValueError` elsewhere)
    and a Unix system (`NotImplementedError` on Windows): there, await ``serve()`` and call ``stop()`` yourself.
    """
    loop = asyncio.get_running_loop()
    received = set()

    def handle_signal(number: signal.Signals) -> None:
        received.add(number)
        stop()

    for number in _SIGNALS:
        loop.add_signal_handler(number, handle_signal, number)
    try:
        await serve()
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
    return signal.SIGINT in received
