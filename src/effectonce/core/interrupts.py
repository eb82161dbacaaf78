"""Distinguishes a user function that exits by itself from one that a signal or a cancellation interrupts.

`sys.exit()` in a step, or a `CancelledError` that the step raises itself, ends that step alone. But a signal handler
raises `SystemExit` out of whatever line the main thread is executing, and then the process must end.

A handler may raise an `Exception` as well: the time limit of a task, a `TimeoutError`. It is its caller's, whichever
line of ours it strikes: an ``except Exception`` that expects a failure of its own lines must let it pass.
"""

from __future__ import annotations

import asyncio
import functools
import signal
import threading
from types import CodeType
from typing import Any

from .cancellation import is_being_cancelled


class SignalHandlers:
    """The signal handlers of this process that were ever seen: one may remove itself before it raises.

    An exception is a handler's if its traceback passes through the handler's code.
    """

    def __init__(self) -> None:
        self._codes: set[CodeType] = set()
        #: Whether one was seen that is not Python code. Its exceptions cannot be recognised, so every `SystemExit` of
        #: the main thread counts as a signal's.
        self.opaque_seen = False

    def remember(self) -> None:
        """Remember the handlers that are set now."""
        for number in signal.valid_signals():
            handler: Any = signal.getsignal(number)
            if not callable(handler) or handler is signal.default_int_handler:
                continue
            while isinstance(handler, functools.partial):
                handler = handler.func
            method = getattr(handler, "__func__", handler)
            code = getattr(method, "__code__", None) or getattr(type(handler).__call__, "__code__", None)
            if isinstance(code, CodeType):
                self._codes.add(code)
            else:
                self.opaque_seen = True

    def raised(self, error: BaseException) -> bool:
        """Whether one of them raised ``error``. They run in the main thread only."""
        if not _is_main_thread():
            return False
        self.remember()
        traceback = error.__traceback__
        while traceback is not None:
            if traceback.tb_frame.f_code in self._codes:
                return True
            traceback = traceback.tb_next
        return False


_handlers = SignalHandlers()


def remember_signal_handlers() -> None:
    """Remember which code handles signals. Call this before running a user function whose exit `is_own_exit` judges."""
    _handlers.remember()


def is_own_exit(error: BaseException) -> bool:
    """Whether ``error``, raised by a user function, ends that function alone, and not the process or task."""
    if isinstance(error, asyncio.CancelledError):
        return not is_being_cancelled()
    if not isinstance(error, SystemExit):
        return False
    return not (_handlers.raised(error) or (_handlers.opaque_seen and _is_main_thread()))


def find_interrupt(error: BaseException) -> BaseException | None:
    """Return the exception of a signal handler that ``error`` is, or was raised from; None if there is none."""
    cause: BaseException | None = error
    while cause is not None:
        if _handlers.raised(cause):
            return cause
        cause = cause.__cause__
    return None


def raise_interrupt(error: BaseException) -> None:
    """Raise the exception of a signal handler that ``error`` is, or was raised from, if there is one.

    The first line of an ``except Exception`` around code that cannot fail in the way that is expected there.
    """
    interrupt = find_interrupt(error)
    if interrupt is not None:
        raise interrupt


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
