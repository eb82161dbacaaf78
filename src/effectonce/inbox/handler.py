"""`Inbox.handler`: the decorator for a handler that runs each message in a transaction of its own."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

from msgspec import Struct

from effectonce.core.codec import Codec
from effectonce.errors import ConfigurationError
from effectonce.guard.introspection import is_async, name_of, return_type
from effectonce.guard.once import Outcome
from effectonce.sessions import is_connection

from .handler_run import HandlerRun
from .run_loop import run_async_handler, run_handler
from .table import InboxKey, StartCount

if TYPE_CHECKING:
    from .inbox import Inbox

M = TypeVar("M")
M_contra = TypeVar("M_contra", contravariant=True)
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")


class InboxHandler(Protocol[M_contra, R_co]):
    """What the decorator makes of a function: called with a message, it handles it once and returns the result."""

    __name__: str

    def __call__(self, message: M_contra, /) -> R_co: ...

    @overload
    def call(  # type: ignore[overload-overlap]
        self: InboxHandler[M_contra, Coroutine[Any, Any, T]], message: M_contra, /
    ) -> Coroutine[Any, Any, Outcome[T]]: ...
    @overload
    def call(self, message: M_contra, /) -> Outcome[R_co]: ...
    def call(self, message: Any, /) -> Any:
        """Handle ``message`` and return an `Outcome`. Await it if the handler is ``async def``."""


class HandlerDecorator(Struct, kw_only=True, eq=False):
    """What `Inbox.handler(...)` returns: the decorator. `Inbox.handler` describes the options."""

    inbox: Inbox
    connect: Callable[[], Any]
    max_attempts: int | None
    retries: int
    backoff: float  # seconds
    max_backoff: float  # seconds
    returns: Any
    allow_unsafe: bool

    def __post_init__(self) -> None:
        connect = self.connect
        # SQLAlchemy's scoped_session is a connection, and also makes one when it is called.
        if not callable(connect) or (is_connection(connect) and not hasattr(connect, "registry")):
            raise ConfigurationError(
                "connect= takes a function that returns a connection for one message, such as pool.connection or "
                "lambda: sqlite3.connect('shop.db'), not a connection"
            )
        if self.max_attempts is not None:
            _require_count("max_attempts", self.max_attempts, least=1)
        _require_count("retries", self.retries, least=0)

    def __call__(self, fn: Callable[[Any, M], R]) -> InboxHandler[M, R]:
        signature = _check_signature(fn)
        handler = TransactionalHandler(self, fn)

        async def handle_async(message: Any) -> Any:
            return (await handler.run_async(message)).value

        def handle_sync(message: Any) -> Any:
            return handler.run_sync(message).value

        handle: Any = handle_async if handler.is_async else handle_sync
        handle.call = handler.run_async if handler.is_async else handler.run_sync
        for name in ("__module__", "__name__", "__qualname__", "__doc__"):
            if hasattr(fn, name):
                setattr(handle, name, getattr(fn, name))
        # The caller does not pass the connection.
        parameters = list(signature.parameters.values())[1:]
        handle.__signature__ = signature.replace(parameters=parameters)
        hints = getattr(fn, "__annotations__", {})
        shown = {*(parameter.name for parameter in parameters), "return"}
        handle.__annotations__ = {name: hint for name, hint in hints.items() if name in shown}
        handled: InboxHandler[M, R] = handle
        return handled


def _require_count(name: str, value: Any, *, least: int) -> None:
    if not isinstance(value, int) or value < least:
        raise ConfigurationError(f"{name}={value!r} must be a whole number of at least {least}")


def _check_signature(fn: Any) -> inspect.Signature:
    """Return the signature of ``fn``. Raises `ConfigurationError` unless it takes a connection and a message."""
    name = name_of(fn)
    if not callable(fn) or isinstance(fn, type):
        raise ConfigurationError(f"inbox.handler takes a function of a connection and a message, not {name}")
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise ConfigurationError(
            f"{name} is a generator, which has no moment at which it is done; make it a function that returns"
        )
    signature = inspect.signature(fn)
    try:
        signature.bind(None, None)
    except TypeError as error:
        raise ConfigurationError(f"{name} must take a connection and a message, (conn, message): {error}") from None
    if next(iter(signature.parameters)) in ("self", "cls"):
        raise ConfigurationError(f"{name} is a method; make it a function of (conn, message), or use inbox.call in it")
    return signature


class TransactionalHandler:
    """A handler with its options. Each message is one `HandlerRun`.

    ``key_for`` makes the key of a message; a tool whose messages are something else gives its own. ``check_start``, in
    place of ``max_attempts``: it is called with the message and the count of its starts before the handler runs, and
    raises an error if that may not start.
    """

    def __init__(
        self,
        options: HandlerDecorator,
        fn: Callable[..., Any],
        key_for: Callable[[Any], InboxKey] | None = None,
        check_start: Callable[[Any, StartCount], None] | None = None,
    ) -> None:
        self.options = options
        self.inbox = options.inbox
        self.key_for: Callable[[Any], InboxKey] = self.inbox.key_for if key_for is None else key_for
        self.check_start = check_start
        self.counts_starts = check_start is not None or options.max_attempts is not None
        self.fn = fn
        self.is_async = is_async(fn)
        self.needs_check = not options.allow_unsafe
        self._codec: Codec | None = None

    @property
    def codec(self) -> Codec:
        """The codec of the results. Made on first use: their type may be defined after the handler."""
        if self._codec is None:
            self._codec = self.inbox.codec_for(return_type(self.fn, self.options.returns))
        return self._codec

    def backoff(self, retries: int) -> float:
        """The seconds before the next attempt, after ``retries`` retries. Random, so that two transactions that
        collided do not collide again."""
        ceiling = self.options.backoff * 2.0 ** min(retries, 30)  # above that, a float could overflow
        return random.uniform(0, min(self.options.max_backoff, ceiling))

    def run_sync(self, message: Any) -> Outcome[Any]:
        return run_handler(HandlerRun(self, message), self.fn, message)

    async def run_async(self, message: Any) -> Outcome[Any]:
        return await run_async_handler(HandlerRun(self, message), self.fn, message)
