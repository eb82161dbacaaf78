"""`Inbox.handler`: a handler of messages that owns its transaction.

One message is one `Delivery`. The handler is called between its coroutines, never inside one: its ``StopIteration``
would become a ``RuntimeError``.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

from effectonce.core.codec import Codec
from effectonce.core.run_sync import run_sync
from effectonce.errors import ConfigurationError
from effectonce.guard.introspection import LAZY, is_async, name_of, refuse_lazy, return_type
from effectonce.guard.once import Outcome
from effectonce.sessions import knows

from .delivery import Delivery

if TYPE_CHECKING:
    from .inbox import Inbox

M = TypeVar("M")
M_contra = TypeVar("M_contra", contravariant=True)
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")


class Handled(Protocol[M_contra, R_co]):
    """A handler under `Inbox.handler`: called with a message it handles it once, and gives the result."""

    __name__: str

    def __call__(self, message: M_contra, /) -> R_co: ...

    @overload
    def call(  # type: ignore[overload-overlap]
        self: Handled[M_contra, Coroutine[Any, Any, T]], message: M_contra, /
    ) -> Coroutine[Any, Any, Outcome[T]]: ...
    @overload
    def call(self, message: M_contra, /) -> Outcome[R_co]: ...
    def call(self, message: Any, /) -> Any:
        """As calling it, but gives an `Outcome` (to be awaited where the handler is ``async def``)."""
        ...


class Handling:
    """What `Inbox.handler(...)` returns: a decorator, and all that is known before a message comes."""

    def __init__(
        self,
        inbox: Inbox,
        *,
        connect: Callable[[], Any],
        max_attempts: int | None,
        retries: int,
        backoff: float,
        max_backoff: float,
        returns: Any,
        allow_unsafe: bool,
    ) -> None:
        if not callable(connect) or (knows(connect) and not hasattr(connect, "registry")):  # a scoped_session makes one
            raise ConfigurationError(
                "connect= takes a function that gives a connection for one message, such as pool.connection or "
                "lambda: sqlite3.connect('shop.db'), not a connection"
            )
        for name, value in (("max_attempts", max_attempts), ("retries", retries + 1)):
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ConfigurationError(f"{name}={value!r} is not a number of attempts")
        self.inbox = inbox
        self.connect = connect
        self.max_attempts = max_attempts
        self.retries = retries
        self.backoff = backoff
        self.max_backoff = max_backoff
        self.returns = returns
        self.allow_unsafe = allow_unsafe

    def __call__(self, fn: Callable[[Any, M], R]) -> Handled[M, R]:
        signature = _signature(fn)
        plan = Plan(self, fn)

        async def handle_async(message: Any) -> Any:
            return (await plan.run_async(message)).value

        def handle_sync(message: Any) -> Any:
            return plan.run_sync(message).value

        handle: Any = handle_async if plan.is_async else handle_sync
        handle.call = plan.run_async if plan.is_async else plan.run_sync
        for name in ("__module__", "__name__", "__qualname__", "__doc__"):
            if hasattr(fn, name):
                setattr(handle, name, getattr(fn, name))
        # Without the connection, which is no affair of whoever calls it.
        parameters = list(signature.parameters.values())[1:]
        handle.__signature__ = signature.replace(parameters=parameters)
        hints = getattr(fn, "__annotations__", {})
        handle.__annotations__ = {
            name: hints[name] for name in (*(each.name for each in parameters), "return") if name in hints
        }
        handled: Handled[M, R] = handle
        return handled


def _signature(fn: Any) -> inspect.Signature:
    """That of a function of a connection and a message; anything else is refused."""
    name = name_of(fn)
    if not callable(fn) or isinstance(fn, type):
        raise ConfigurationError(f"inbox.handler takes a function of a connection and a message, not {name}")
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise ConfigurationError(f"{name} is a generator: it has no single end at which it is done")
    signature = inspect.signature(fn)
    try:
        signature.bind(None, None)
    except TypeError as error:
        raise ConfigurationError(f"{name} must take a connection and a message, (conn, message): {error}") from None
    if next(iter(signature.parameters)) in ("self", "cls"):
        raise ConfigurationError(f"{name} is a method; make it a function of (conn, message), or use inbox.call in it")
    return signature


class Plan:
    """A handler, and how its messages are handled."""

    def __init__(self, options: Handling, fn: Callable[..., Any]) -> None:
        self.options = options
        self.inbox = options.inbox
        self.fn = fn
        self.is_async = is_async(fn)
        self.unchecked = not options.allow_unsafe
        self._codec: Codec | None = None

    @property
    def codec(self) -> Codec:
        """Built on first use: the result's type may name things that are defined after the handler."""
        if self._codec is None:
            self._codec = self.inbox._codec(return_type(self.fn, self.options.returns))
        return self._codec

    def pause(self, tries: int) -> float:
        """Seconds before the next try: random, so that those who collided do not collide again."""
        return random.uniform(0, min(self.options.max_backoff, self.options.backoff * 2.0 ** min(tries, 30)))

    def run_sync(self, message: Any) -> Outcome[Any]:
        delivery = Delivery(self, message)
        while True:
            try:
                if run_sync(delivery.begin()):
                    with delivery:
                        value = self.fn(delivery.session.connection, message)
                        if type(value) in LAZY or hasattr(value, "__await__"):
                            refuse_lazy(self.fn, value)
                    run_sync(delivery.finish(value))
                return delivery.outcome
            except BaseException as error:
                pause = run_sync(delivery.abort(error))
                if pause is None:
                    if delivery.surfaces is not None:
                        raise delivery.surfaces from error
                    raise
            time.sleep(pause)

    async def run_async(self, message: Any) -> Outcome[Any]:
        delivery = Delivery(self, message)
        while True:
            try:
                if await delivery.begin():
                    with delivery:
                        value = await self.fn(delivery.session.connection, message)
                    await delivery.finish(value)
                return delivery.outcome
            except GeneratorExit:
                raise  # nothing can be awaited any more; the connection's end undoes it
            except BaseException as error:
                pause = await delivery.abort(error)
                if pause is None:
                    if delivery.surfaces is not None:
                        raise delivery.surfaces from error
                    raise
            await asyncio.sleep(pause)
