"""`run_sync`: runs a coroutine that never suspends, on the caller's own thread.

Every algorithm is written once as ``async def`` over injected ports. Sync code runs it from here with sync ports,
whose coroutines return without suspending: no event loop, no background thread, no second copy.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Generator
from typing import Any, Generic, NoReturn, TypeVar

from effectonce.errors import NotAwaited, SyncAsyncMismatch

T = TypeVar("T")


def run_sync(coro: Coroutine[Any, Any, T]) -> T:
    """The result of ``coro``. It must not suspend: one that does was given an async port by mistake."""
    try:
        coro.send(None)
    except StopIteration as stop:
        value: T = stop.value
        return value
    coro.close()
    raise SyncAsyncMismatch("a sync call reached something that only works inside an event loop; use the async form")


class Pending(Generic[T]):
    """An awaitable answer. Testing it without `await` raises `NotAwaited`, since it would always be true."""

    __slots__ = ("_awaitable", "_what")

    def __init__(self, awaitable: Awaitable[T], what: str) -> None:
        self._awaitable = awaitable
        self._what = what

    def __await__(self) -> Generator[Any, Any, T]:
        return self._awaitable.__await__()

    def __bool__(self) -> NoReturn:
        if isinstance(self._awaitable, Coroutine):
            self._awaitable.close()
        raise NotAwaited(
            f"{self._what} was tested without `await`, which would always be true; write `await {self._what}`"
        )
