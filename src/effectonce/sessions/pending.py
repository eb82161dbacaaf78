"""`Pending`: what a call on the caller's own connection returns if that connection is async."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Generator
from typing import Any, Generic, NoReturn, TypeVar

from effectonce.errors import NotAwaited

T = TypeVar("T")


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
