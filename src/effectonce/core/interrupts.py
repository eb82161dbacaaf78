"""Distinguishes a user function that exits by itself from one that a signal or a cancellation interrupts.

`sys.exit()` in a step, or a `CancelledError` that the step raises itself, ends that step alone. But a signal handler
raises `SystemExit` out of whatever line the main thread is executing, and then the process must end.
"""

from __future__ import annotations

import asyncio
import functools
import signal
import threading
from types import CodeType
from typing import Any

#: The code of every signal handler that was ever seen: a handler may have removed itself before it raises.
_signal_handler_codes: set[CodeType] = set()
#: Whether a handler was seen that is not Python code. Its exceptions cannot be recognised, so every `SystemExit` of the
#: main thread counts as a signal's.
_opaque_handler_seen = False


def remember_signal_handlers() -> None:
    """Remember which code handles signals. Call this before running a user function whose exit `is_own_exit` judges."""
    global _opaque_handler_seen
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        if not callable(handler) or handler is signal.default_int_handler:
            continue
        while isinstance(handler, functools.partial):
            handler = handler.func
        method = getattr(handler, "__func__", handler)
        code = getattr(method, "__code__", None) or getattr(type(handler).__call__, "__code__", None)
        if isinstance(code, CodeType):
            _signal_handler_codes.add(code)
        else:
            _opaque_handler_seen = True


def is_being_cancelled() -> bool:
    """Whether the running task is being cancelled. If not, a ``CancelledError`` comes from the code itself: it awaited
    something that was cancelled, or raised it."""
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
    if threading.current_thread() is not threading.main_thread():  # signal handlers run in the main thread only
        return False
    remember_signal_handlers()
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code in _signal_handler_codes:
            return True
        traceback = traceback.tb_next
    return _opaque_handler_seen
