"""The steps of a saga: plain functions, what undoes them, and how one call of one is made."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import inspect
import threading
from collections.abc import Callable, Coroutine, Mapping, Set
from typing import Any, Final, Generic, Protocol, TypeVar, overload

from msgspec import Struct

from effectonce.core.codec import Codec
from effectonce.core.guarded_call.run import Run, running
from effectonce.core.retry import Retry
from effectonce.core.store_runtime import StoreClient
from effectonce.errors import ConfigurationError, ResultNotStored, show
from effectonce.guard.introspection import LAZY, is_async, name_of, refuse_lazy, refuse_unguardable

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

STEP_RETRY: Final = Retry(1, max_crashes=5)
UNDO_RETRY: Final = Retry(5, first="1s", cap="30s", max_crashes=5)
CANCELLING: Final = 1.0
"""Seconds in which a cancelled task is expected to end."""


class Work(Struct, frozen=True):
    """A function of a saga, and how it is called."""

    function: Callable[..., Any]
    is_async: bool
    takes_done: bool
    retry: Retry
    timeout: float | None = None
    grace: float = 0.0


def work(function: Any, retry: Retry, timeout: float | None = None, grace: float = 0.0) -> Work:
    """``function`` as `Work`; `ConfigurationError` where it does not take ``(input)`` or ``(input, done)``."""
    refuse_unguardable(function)
    parameters = inspect.signature(function).parameters.values()
    needed = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    keywords = [each for each in parameters if each.kind is each.KEYWORD_ONLY and each.default is each.empty]
    if len(needed) not in (1, 2) or keywords:
        raise ConfigurationError(f"{name_of(function)} must take (input) or (input, done), and nothing else")
    if len(needed) == 2 and needed[1].default is not inspect.Parameter.empty and needed[1].name != "done":
        second = needed[1].name
        raise ConfigurationError(
            f"{name_of(function)} has a default for {second}, which would not be used: what comes second is `done`, "
            f"what the steps before gave. Call it done, or make {second} keyword-only: (input, *, {second}=…)"
        )
    return Work(function, is_async(function), len(needed) == 2, retry, timeout, grace)


class Step(Generic[T]):
    """A function under `Saga.step`. Called, it is the plain function; `compensate` names what undoes it."""

    def __init__(self, name: str, do: Work, codec: Codec) -> None:
        self.name = name
        self.do = do
        self.undo: Work | None = None
        self.codec = codec
        self.__doc__ = do.function.__doc__
        self.__wrapped__ = do.function

    @overload
    def compensate(self, function: F, /) -> F: ...
    @overload
    def compensate(self, function: None = None, /, *, retry: Retry) -> Callable[[F], F]: ...
    def compensate(self, function: Any = None, /, *, retry: Retry = UNDO_RETRY) -> Any:
        """Make a function what undoes this step: it takes the same, and ``done`` has the step's own result.

        It is tried as ``retry`` says; where it keeps failing, the saga is in doubt and an operator decides.
        """
        if function is None:
            return lambda function: self._compensated_by(function, retry)
        return self._compensated_by(function, retry)

    def _compensated_by(self, function: F, retry: Retry) -> F:
        if self.undo is not None:
            raise ConfigurationError(f"step {self.name} is compensated by {name_of(self.undo.function)} already")
        self.undo = work(function, retry)
        return function

    def __call__(self, *args: Any) -> Any:
        return self.do.function(*args)

    def __repr__(self) -> str:
        return f"<step {self.name} {name_of(self.do.function)}>"


class Decorate(Protocol):
    """What `Saga.step` gives: it makes a function, of either colour, a `Step` of what it returns."""

    @overload
    def __call__(self, function: Callable[..., Coroutine[Any, Any, T]], /) -> Step[T]: ...
    @overload
    def __call__(self, function: Callable[..., T], /) -> Step[T]: ...


class Done:
    """What the steps of one saga have given: ``done[reserve]`` is the result of an earlier step."""

    def __init__(self, steps: Mapping[str, Step[Any]], finished: Set[str], results: Mapping[str, bytes]) -> None:
        self._steps = steps
        self._finished = finished
        self._results = results

    def __getitem__(self, step: Step[T]) -> T:
        """`ConfigurationError` of a step that has not run, `ResultNotStored` where its result could not be kept."""
        if not isinstance(step, Step) or self._steps.get(step.name) is not step:
            raise ConfigurationError(f"{step!r} is no step of this saga; ask by the decorated function: done[reserve]")
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
    """What `current()` gives inside a step: under the key of the step, on the lease of the saga."""

    @property
    def lease_lost(self) -> bool:
        """Whether to stop before the next outside effect: the lease was lost, or the step timed out."""
        saga = self.parent
        return self.refused or saga is None or saga.lease_lost

    @property
    def min_retention(self) -> int:
        """What is done once inside a step is remembered as long as the saga is, so that it is not done again."""
        return self.policy.retention


class Attempt(Struct, eq=False):
    """One call of a step: on this thread, as a task, or in a thread of its own where it may outlast us."""

    run: StepRun
    client: StoreClient
    finished: bool = False
    value: Any = None
    error: BaseException | None = None
    going: asyncio.Task[Any] | concurrent.futures.Future[Any] | None = None

    async def make(self, work: Work, args: tuple[Any, ...]) -> None:
        """Call it. Not ``finished`` afterwards: it has not come back within its timeout."""
        loop, function = self.client.loop, work.function
        before = running.get()
        running.set(self.run)
        try:
            if work.is_async:
                if work.timeout is None:
                    try:
                        value = await function(*args)
                    except Exception as error:
                        self._came(None, error)
                    else:
                        self._came(value, None)
                    return
                assert loop is not None
                self.going = loop.create_task(_awaited(function, args))
            elif loop is None and work.timeout is None:
                self._came(*_called(function, args))
                return
            else:
                self.going = _in_thread(function, args)
        finally:
            running.set(before)
        await self.wait(work.timeout)

    async def wait(self, seconds: float | None) -> None:
        """Until it has come back, or ``seconds`` are over."""
        going = self.going
        assert going is not None
        if isinstance(going, asyncio.Task):
            await asyncio.wait({going}, timeout=seconds)
        elif self.client.loop is not None:
            await asyncio.wait({asyncio.wrap_future(going)}, timeout=seconds)
        else:
            concurrent.futures.wait([going], seconds)
        if going.done():
            self._came(*((None, asyncio.CancelledError("it was cancelled")) if going.cancelled() else going.result()))

    async def stop(self) -> bool:
        """Cancel it where that is possible; whether it has ended."""
        if isinstance(self.going, asyncio.Task) and not self.going.done():
            self.going.cancel()
            await self.wait(CANCELLING)
        return self.going is None or self.going.done()

    def keep_leased(self, saga: Run) -> None:
        """It goes on without us: until it has ended the lease is kept, so that nobody runs beside it."""
        leased = saga.runtime.leased_runs
        leased.add(saga)
        if self.going is not None:
            self.going.add_done_callback(lambda _: leased.discard(saga))

    def _came(self, value: Any, error: BaseException | None) -> None:
        self.finished, self.value, self.error = True, value, error
        self.run.active = False


def _called(function: Any, args: tuple[Any, ...]) -> tuple[Any, Exception | None]:
    """What it gave, or raised: returned, since a StopIteration must not pass through a coroutine."""
    try:
        value = function(*args)
        if type(value) in LAZY or hasattr(value, "__await__"):
            refuse_lazy(function, value)
        return value, None
    except Exception as error:
        return None, error


async def _awaited(function: Any, args: tuple[Any, ...]) -> tuple[Any, BaseException | None]:
    try:
        return await function(*args), None
    except (Exception, SystemExit) as error:  # of a task that ends with the latter, the event loop ends too
        return None, error


def _in_thread(function: Any, args: tuple[Any, ...]) -> concurrent.futures.Future[Any]:
    """A daemon thread, so that a call that never comes back does not keep the process from its end."""
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()
    context = contextvars.copy_context()

    def body() -> None:
        try:
            future.set_result(_called(function, args))
        except BaseException as error:
            future.set_result((None, error))

    threading.Thread(target=context.run, args=(body,), name="effectonce-step", daemon=True).start()
    return future


MAX_NAME: Final = 80
"""Longest name of a step, in bytes of UTF-8: the ids of sagas leave room for it."""


def check_name(name: str, taken: Mapping[str, Any]) -> None:
    """A step's name is part of keys, so it must not be read as another's."""
    unfit = not name or "/" in name or not name.isprintable() or name == "compensate"
    if unfit or len(name.encode()) > MAX_NAME:  # what is printable can be encoded
        raise ConfigurationError(
            f"{show(name)!r} cannot be the name of a step: give it name=, of 1 to {MAX_NAME} printable characters "
            "(bytes, in UTF-8) without '/'"
        )
    if name in taken:
        raise ConfigurationError(f"this saga has a step {name} already; give one of them name=")


def diagram(steps: Mapping[str, Step[Any]]) -> str:
    """The steps as a Mermaid flowchart."""
    names = list(steps)
    ids = {name: f"s{at}" for at, name in enumerate(names)}
    lines = ["flowchart LR", *(f'    {ids[name]}["{_quoted(name)}"]' for name in names)]
    undone = [name for name in names if steps[name].undo is not None]
    lines += [f'    u{ids[name]}(["undo {_quoted(name)}"])' for name in undone]
    lines += ["    done((done))", "    failed((failed))"]
    for name, after in zip(names, [*names[1:], None], strict=True):
        lines.append(f"    {ids[name]} --> {ids[after] if after else 'done'}")
    for at, name in enumerate(names):
        back = next((f"u{ids[each]}" for each in reversed(names[:at]) if each in undone), "failed")
        lines.append(f"    {ids[name]} -. fails .-> {back}")
        if name in undone:
            lines.append(f"    u{ids[name]} --> {back}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return text.replace("&", "#amp;").replace('"', "#quot;").replace("<", "#lt;").replace(">", "#gt;")
