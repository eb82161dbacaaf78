"""Telling a user function that exited by itself from one that a signal or a cancellation interrupted.

`sys.exit()` in a step, or a `CancelledError` that the step raised itself, ends that step alone. But a signal's handler
raises `SystemExit` out of any line that the main thread is executing, and then the process must end.
"""

from __future__ import annotations

import asyncio
import functools
import signal
import threading
from types import CodeType
from typing import Any

#: The code of every signal handler that was seen. One that raises may have removed itself before.
_handlers: set[CodeType] = set()
_opaque = False  # one was seen without code of its own: what it raises cannot be distinguished


def remember_signal_handlers() -> None:
    """Remember which code handles signals. Call it before user functions run that `is_own_exit` judges."""
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


def is_being_cancelled() -> bool:
    """Whether the running task is being cancelled. A ``CancelledError`` in any other task, or in sync code, is of the
    code's own making: it has awaited something that was cancelled, or raised it itself."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop runs in this thread
        return False
    return task is not None and task.cancelling() > 0


def is_own_exit(error: BaseException) -> bool:
    """Whether ``error``, raised by a user function, ends that function alone, and not the process or task."""
    if isinstance(error, asyncio.CancelledError):
        return not is_being_cancelled()
    return isinstance(error, SystemExit) and not _raised_by_signal(error)


def _raised_by_signal(error: BaseException) -> bool:
    if threading.current_thread() is not threading.main_thread():  # where no handler runs
        return False
    remember_signal_handlers()
    place = error.__traceback__
    while place is not None:
        if place.tb_frame.f_code in _handlers:
            return True
        place = place.tb_next
    return _opaque
