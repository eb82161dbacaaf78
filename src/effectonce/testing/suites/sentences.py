"""What the suites for stores and for brokers share: a case is a sentence of the contract, and these check it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, TypeVar

H = TypeVar("H")
T = TypeVar("T")


class Sentence(Generic[H]):
    """One sentence of a contract: the name of ``body`` says it, its docstring gives the reason."""

    def __init__(self, body: Callable[[H], Coroutine[Any, Any, None]]) -> None:
        self._body = body
        self.__doc__ = body.__doc__
        self.name = body.__name__

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"


def equal(got: object, want: object, what: str) -> None:
    """Require that ``got`` is ``want``. Not by `assert`: it must work under ``python -O`` and without pytest."""
    if got != want or type(got) is not type(want):
        raise AssertionError(f"{what}: expected {_short(want)}, got {_short(got)}")


def holds(condition: bool, what: str) -> None:
    if not condition:
        raise AssertionError(what)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 400 else f"{text[:400]}… ({len(text)} characters)"


def threads(bodies: Sequence[Callable[[], T]]) -> list[T]:
    """Run ``bodies`` at once, on a thread each, and return their results. Raises the first exception."""
    barrier = threading.Barrier(len(bodies))
    results: list[T | BaseException] = [RuntimeError("never ran")] * len(bodies)

    def main(n: int, body: Callable[[], T]) -> None:
        try:
            barrier.wait(30)
            results[n] = body()
        except BaseException as error:
            results[n] = error

    threads = [threading.Thread(target=main, args=(n, body), daemon=True) for n, body in enumerate(bodies)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if any(thread.is_alive() for thread in threads):
        raise AssertionError("concurrent calls have not come back within a minute: a deadlock")
    returned: list[T] = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        returned.append(result)
    return returned
