"""The steps of a saga: functions with their compensations, and one call of such a function (`StepCall`)."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import inspect
from collections.abc import Callable, Coroutine, Mapping, Set
from typing import Any, Final, Generic, Protocol, TypeVar, overload

from msgspec import Struct

from effectonce.core.codec import Codec
from effectonce.core.guarded_call.run import Run, StoreRun, current_run
from effectonce.core.retry import Retry
from effectonce.core.run_sync import run_in_thread
from effectonce.core.store_clients import StoreClient
from effectonce.errors import ConfigurationError, ResultNotStored, show
from effectonce.guard.introspection import is_async, name_of, refuse_lazy, refuse_unguardable

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

STEP_RETRY: Final = Retry(1, max_crashes=5)
COMPENSATION_RETRY: Final = Retry(5, first="1s", cap="30s", max_crashes=5)
MAX_STEP_NAME_BYTES: Final = 80
"""Of UTF-8. The ids of sagas leave room for it."""
_CANCEL_TIMEOUT_S: Final = 1.0  # how long to wait for the end of a cancelled task


class StepFunction(Struct, frozen=True):
    """A step's function or its compensation, with its settings."""

    function: Callable[..., Any]
    is_async: bool
    takes_done: bool
    retry: Retry
    timeout_s: float | None = None
    grace_s: float = 0.0


def make_step_function(
    function: Any, retry: Retry, timeout_s: float | None = None, grace_s: float = 0.0
) -> StepFunction:
    """Check that ``function`` takes ``(input)`` or ``(input, done)``. Raises `ConfigurationError` where it does not."""
    refuse_unguardable(function)
    parameters = inspect.signature(function).parameters.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required_keywords = [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if len(positional) not in (1, 2) or required_keywords:
        raise ConfigurationError(f"{name_of(function)} must take (input) or (input, done), and nothing else")
    takes_done = len(positional) == 2
    if takes_done and positional[1].default is not inspect.Parameter.empty and positional[1].name != "done":
        second = positional[1].name
        raise ConfigurationError(
            f"{name_of(function)} has a default for {second}, which would not be used: the second argument is `done`, "
            f"the results of the steps before. Call it done, or make {second} keyword-only: (input, *, {second}=…)"
        )
    return StepFunction(function, is_async(function), takes_done, retry, timeout_s, grace_s)


class Step(Generic[T]):
    """A function under `Saga.step`. Calling it calls the plain function; `compensate` registers its compensation."""

    def __init__(self, name: str, do: StepFunction, codec: Codec) -> None:
        self.name = name
        self.do = do
        self.undo: StepFunction | None = None
        self.codec = codec
        self.__doc__ = do.function.__doc__
        self.__wrapped__ = do.function

    @overload
    def compensate(self, function: F, /) -> F: ...
    @overload
    def compensate(self, function: None = None, /, *, retry: Retry) -> Callable[[F], F]: ...
    def compensate(self, function: Any = None, /, *, retry: Retry = COMPENSATION_RETRY) -> Any:
        """Make a function the compensation of this step. It takes the same arguments, and ``done`` also has the result
        of the step itself.

        ``retry``: how often it is tried. If it keeps failing, the saga is in doubt and an operator decides.
        """
        if function is None:
            return lambda function: self._set_compensation(function, retry)
        return self._set_compensation(function, retry)

    def _set_compensation(self, function: F, retry: Retry) -> F:
        if self.undo is not None:
            raise ConfigurationError(f"step {self.name} is compensated by {name_of(self.undo.function)} already")
        self.undo = make_step_function(function, retry)
        return function

    def __call__(self, *args: Any) -> Any:
        return self.do.function(*args)

    def __repr__(self) -> str:
        return f"<step {self.name} {name_of(self.do.function)}>"


class StepDecorator(Protocol):
    """The decorator that `Saga.step` returns. It makes a sync or async function a `Step` of its result."""

    @overload
    def __call__(self, function: Callable[..., Coroutine[Any, Any, T]], /) -> Step[T]: ...
    @overload
    def __call__(self, function: Callable[..., T], /) -> Step[T]: ...


class Done:
    """The results of one saga's steps: ``done[reserve]`` is the result of an earlier step."""

    def __init__(self, steps: Mapping[str, Step[Any]], finished: Set[str], results: Mapping[str, bytes]) -> None:
        self._steps = steps
        self._finished = finished
        self._results = results

    def __getitem__(self, step: Step[T]) -> T:
        """Return the result of ``step``. Raises `ConfigurationError` for a step that is not done, `ResultNotStored`
        where its result could not be stored."""
        if not isinstance(step, Step) or self._steps.get(step.name) is not step:
            raise ConfigurationError(
                f"{step!r} is not a step of this saga; ask by the decorated function: done[reserve]"
            )
        if step.name not in self._finished:
            raise ConfigurationError(f"step {step.name} is not done, so it has no result yet")
        stored = self._results.get(step.name)
        if stored is not None:
            value: T = step.codec.decode(stored)
            return value
        if step.codec.discards:
            return None  # type: ignore[return-value]
        raise ResultNotStored(
            f"step {step.name} is done, but its result was not stored (too large, or not as annotated)"
        )

    def __contains__(self, step: Step[Any]) -> bool:
        return step.name in self._finished and self._steps.get(step.name) is step

    def __repr__(self) -> str:
        return f"<done: {', '.join(name for name in self._steps if name in self._finished) or 'nothing'}>"


class StepRun(Run, eq=False):
    """The run that `current()` returns inside a step: under the step's key, on the saga's lease."""

    @property
    def lease_lost(self) -> bool:
        """Whether to stop before the next outside effect: the lease was lost, or the step timed out."""
        saga = self.parent
        return self.renewal_refused or saga is None or saga.lease_lost

    @property
    def min_retention(self) -> int:
        """The saga's retention. Guards inside a step keep records at least as long, so that no effect is repeated."""
        return self.policy.retention_us


class StepCall(Struct, eq=False):
    """One call of a step: on this thread, as a task, or (so that it can time out) in a thread of its own.

    All methods are the runner's. A call that outlasts its timeout is ``pending``; it can only be awaited, or cancelled
    if it is a task. Its error is a value, never raised here: a coroutine would turn a StopIteration into another error.
    """

    run: StepRun
    client: StoreClient
    finished: bool = False
    value: Any = None
    error: BaseException | None = None
    pending: asyncio.Task[Any] | concurrent.futures.Future[Any] | None = None

    async def start(self, step: StepFunction, args: tuple[Any, ...]) -> None:
        """Call the function and wait for it. If it has not returned within its timeout, it is not ``finished``."""
        loop, function = self.client.loop, step.function
        before = current_run.get()
        current_run.set(self.run)
        try:
            if step.is_async and step.timeout_s is None:
                self._finish(*await _await_and_capture(function, args))
                return
            if loop is None and step.timeout_s is None:
                self._finish(*_call_and_capture(function, args))
                return
            if step.is_async:
                assert loop is not None
                self.pending = loop.create_task(_await_and_capture(function, args))
            else:
                self.pending = _call_in_thread(function, args)
        finally:
            current_run.set(before)
        await self.wait(step.timeout_s)

    async def wait(self, seconds: float | None) -> None:
        """Wait until the pending call has returned, or ``seconds`` are over."""
        pending = self.pending
        assert pending is not None
        if isinstance(pending, asyncio.Task):
            await asyncio.wait({pending}, timeout=seconds)
        elif self.client.loop is not None:
            await asyncio.wait({asyncio.wrap_future(pending)}, timeout=seconds)
        else:
            concurrent.futures.wait([pending], seconds)
        if pending.done():
            if pending.cancelled():
                self._finish(None, asyncio.CancelledError("it was cancelled"))
            else:
                self._finish(*pending.result())

    async def stop(self) -> bool:
        """Cancel the call, if it is a task. Returns whether it has ended."""
        if isinstance(self.pending, asyncio.Task) and not self.pending.done():
            self.pending.cancel()
            await self.wait(_CANCEL_TIMEOUT_S)
        return self.pending is None or self.pending.done()

    def keep_leased(self, saga: StoreRun) -> None:
        """Keep the saga's lease until the call has ended, so that no other process runs beside it."""
        leased = saga.runtime.leased_runs
        leased.add(saga)
        if self.pending is not None:
            self.pending.add_done_callback(lambda _: leased.discard(saga))

    def when_failed(self, report: Callable[[BaseException], None]) -> None:
        """Call ``report`` with the error of a call that has not ended yet, as soon as it ends with one. On the thread
        where it ends."""

        def ended(pending: asyncio.Task[Any] | concurrent.futures.Future[Any]) -> None:
            if not pending.cancelled() and (error := pending.result()[1]) is not None:
                report(error)

        assert self.pending is not None
        self.pending.add_done_callback(ended)

    def _finish(self, value: Any, error: BaseException | None) -> None:
        self.finished, self.value, self.error = True, value, error
        self.run.active = False


def _call_and_capture(function: Any, args: tuple[Any, ...]) -> tuple[Any, Exception | None]:
    """Return the function's result and its error. A coroutine would turn a raised StopIteration into a RuntimeError."""
    try:
        value = function(*args)
        refuse_lazy(function, value)
        return value, None
    except Exception as error:
        return None, error


async def _await_and_capture(function: Any, args: tuple[Any, ...]) -> tuple[Any, BaseException | None]:
    try:
        return await function(*args), None
    except (Exception, SystemExit) as error:  # a task that ends with SystemExit would end the event loop, too
        return None, error


def _call_in_thread(function: Any, args: tuple[Any, ...]) -> concurrent.futures.Future[Any]:
    """Call the function in a daemon thread, so that a call that never returns does not keep the process alive."""
    context = contextvars.copy_context()

    def call() -> tuple[Any, BaseException | None]:
        try:
            return context.run(_call_and_capture, function, args)
        except BaseException as error:
            return None, error

    return run_in_thread(call, "effectonce-step")


def check_step_name(name: str, taken: Mapping[str, Any]) -> None:
    """Raise `ConfigurationError` for a name that would be ambiguous inside a key, or that ``taken`` has already."""
    unfit = not name or "/" in name or not name.isprintable() or name == "compensate"
    if unfit or len(name.encode()) > MAX_STEP_NAME_BYTES:  # a printable name can be encoded
        raise ConfigurationError(
            f"{show(name)!r} cannot be the name of a step: give it name=, of 1 to {MAX_STEP_NAME_BYTES} printable "
            "characters (bytes, in UTF-8) without '/'"
        )
    if name in taken:
        raise ConfigurationError(f"this saga has a step {name} already; give one of them name=")
