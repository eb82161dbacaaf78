"""Whether a function of the user's has ended itself, or somebody has ended it.

`sys.exit()` in a step, or a cancellation that nobody asked for, is that step's own affair: others go on. But a signal's
handler raises `SystemExit` out of whatever the main thread is doing, and then it is the process that is to end.
"""

from __future__ import annotations

import asyncio
import functools
import signal
import threading
from types import CodeType
from typing import Any

#: The code of every handler that was seen. One that raises may have taken itself away before.
_handlers: set[CodeType] = set()
_opaque = False  # one was seen that has no code of its own: what it raises cannot be told from anything else


def look_at_handlers() -> None:
    """To be called before functions of the user's are, which `ended_itself` is then asked about."""
    global _opaque
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        if handler is None or not callable(handler) or handler is signal.default_int_handler:
            continue
        while isinstance(handler, functools.partial):
            handler = handler.func
        method = getattr(handler, "__func__", handler)
        code = getattr(method, "__code__", None) or getattr(type(handler).__call__, "__code__", None)
        if isinstance(code, CodeType):
            _handlers.add(code)
        else:
            _opaque = True


def ended_itself(error: BaseException) -> bool:
    """Whether ``error``, which came out of a function of the user's, ends that function alone."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task() if asyncio._get_running_loop() is not None else None
        return task is None or not task.cancelling()
    return isinstance(error, SystemExit) and not _by_a_signal(error)


def _by_a_signal(error: BaseException) -> bool:
    if threading.current_thread() is not threading.main_thread():  # where no handler runs
        return False
    look_at_handlers()
    place = error.__traceback__
    while place is not None:
        if place.tb_frame.f_code in _handlers:
            return True
        place = place.tb_next
    return _opaque
