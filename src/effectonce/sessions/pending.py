"""`Pending`: what a call on the caller's own connection returns if that connection is async."""

from __future__ import annotations

import itertools
import logging
import sys
import warnings
from collections.abc import Coroutine, Generator
from contextvars import ContextVar, Token
from types import FrameType
from typing import Any, NoReturn, TypeVar

from effectonce.errors import NotAwaited

from .base_session import BaseDriverSession

T_co = TypeVar("T_co", covariant=True)

log = logging.getLogger("effectonce")

#: The calls of the handler that is running in this context, which were not awaited yet, each with its text and place.
#: None outside of a transaction that effectonce commits itself.
_unawaited_calls: ContextVar[dict[int, str] | None] = ContextVar("effectonce_unawaited_calls", default=None)
_numbers = itertools.count()


class Pending(Coroutine[Any, Any, T_co]):
    """The coroutine of one call. Testing it without `await` raises `NotAwaited`, since it would always be true.

    If it is never awaited, nothing of the call has happened. Then its end logs an ERROR with the line of the call, and
    warns as Python does for a coroutine; and the transaction is not committed, where effectonce commits it itself
    (`AwaitedCalls`) or can see the commit of ``writes_on``, the session on which the call was to write.
    """

    __slots__ = ("_call", "_calls_of_handler", "_coroutine", "_file", "_is_used", "_line", "_number", "_writes_on")

    def __init__(
        self, coroutine: Coroutine[Any, Any, T_co], call: str, *, writes_on: BaseDriverSession | None = None
    ) -> None:
        self._coroutine = coroutine
        self._call = call
        self._writes_on = writes_on
        self._is_used = False
        self._file, self._line = _place_of_caller()
        self._calls_of_handler = _unawaited_calls.get()
        if self._calls_of_handler is not None:
            self._number = next(_numbers)
            self._calls_of_handler[self._number] = f"{call} in {self._file}, line {self._line}"

    def __await__(self) -> Generator[Any, Any, T_co]:
        self._mark_used()
        return self._coroutine.__await__()

    def send(self, value: Any) -> Any:
        self._mark_used()
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        self._mark_used()
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._mark_used()
        self._coroutine.close()

    def _mark_used(self) -> None:
        if not self._is_used:
            self._is_used = True
            if self._calls_of_handler is not None:
                self._calls_of_handler.pop(self._number, None)

    def __bool__(self) -> NoReturn:
        self.close()
        raise NotAwaited(
            f"{self._call} was tested without `await`, which would always be true; write `await {self._call}`"
        )

    def __del__(self) -> None:
        if self._is_used or sys.is_finalizing():
            return
        self._is_used = True  # it stays among the calls of its handler: its transaction must not be committed
        self._coroutine.close()  # else Python warns as well, without the line
        message = f"{self._call} was never awaited, so it did nothing; write `await {self._call}`"
        log.error("%s, line %d: %s", self._file, self._line, message)
        if self._writes_on is not None:
            self._writes_on.refuse_commit(_refusal(f"{self._call} in {self._file}, line {self._line}"))
        warnings.warn_explicit(message, RuntimeWarning, self._file, self._line)


class AwaitedCalls:
    """The calls that handlers make on async connections, between `begin` and the commit of their transaction."""

    def __init__(self) -> None:
        self._unawaited: dict[int, str] = {}
        self._token: Token[Any] | None = None

    def begin(self) -> None:
        """Collect the calls that this context, and the tasks that it starts, make from now on."""
        self._unawaited = {}
        self._token = _unawaited_calls.set(self._unawaited)

    def end(self) -> None:
        if self._token is not None:
            _unawaited_calls.reset(self._token)
            self._token = None

    def require_all(self) -> None:
        """Raise `NotAwaited` if a call was made and never awaited: to commit would lose what it was to write."""
        if self._unawaited:
            raise _refusal("; ".join(self._unawaited.values()))


def _refusal(calls: str) -> NotAwaited:
    return NotAwaited(f"never awaited, so nothing was written, and the transaction is not committed: {calls}")


def _place_of_caller() -> tuple[str, int]:
    """The file and the line of the code outside of effectonce that is making a call."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "effectonce":
        frame = frame.f_back
    return ("?", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)
