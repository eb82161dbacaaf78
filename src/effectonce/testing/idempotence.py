"""`assert_idempotent`: does a handler survive being delivered twice?

Written once for sync and async: a handler of plain ``def`` never suspends, so sync code drives the same coroutines.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from effectonce.core.run_sync import run_sync
from effectonce.errors import (
    ConfigurationError,
    EffectOnceError,
    InDoubt,
    PermanentFailure,
    Retryable,
    SyncAsyncMismatch,
)
from effectonce.guard.introspection import name_of
from effectonce.guard.once import Guarded
from effectonce.message import Message, message_id
from effectonce.store import Store
from effectonce.values.durations import readable

from .fault_points import Fault, FaultInjectingBackend, FaultInjector, Killed
from .override import override

CONCURRENT_DELIVERIES = 5
CONCURRENT_SCENARIO = f"delivered {CONCURRENT_DELIVERIES} times at once"
MAX_REDELIVERIES = 5
HOUR_US = 3_600_000_000

Verdict = Literal["once", "lost", "doubled", "may repeat", "broken"]


class Trial(Struct, frozen=True):
    """One way to deliver one message, and its outcome."""

    scenario: str  # "delivered twice", "killed", …
    verdict: Verdict
    effects: int
    expected: int
    timeline: Sequence[str] = field(name="told")  # what happened, in order; "told" in JSON
    step: str = ""  # where the first delivery ended, if it was made to
    why: str = ""
    remedy: str = ""

    def __str__(self) -> str:
        title = f"{self.scenario}{f' before {self.step}' if self.step else ''}: {self.why or self.verdict}"
        events = [f"  {number}. {line}" for number, line in enumerate(self.timeline, 1)]
        return "\n".join([title, *events, *([f"  {self.remedy}"] if self.remedy else [])])


class Report(Struct, frozen=True):
    """Every trial of one handler. ``failures`` break a promise; in ``windows`` its mode allows the effect to repeat."""

    handler: str
    trials: Sequence[Trial]

    @property
    def failures(self) -> Sequence[Trial]:
        return [trial for trial in self.trials if trial.verdict in ("lost", "doubled", "broken")]

    @property
    def windows(self) -> Sequence[Trial]:
        return [trial for trial in self.trials if trial.verdict == "may repeat"]

    def __str__(self) -> str:
        if not self.failures:
            windows = len(self.windows)
            doubled = f"the effect repeated in {windows}, where its mode says it may" if windows else "nothing doubled"
            return f"{self.handler}: {len(self.trials)} trials, nothing lost, {doubled}"
        first, *others = self.failures
        more = f"\n\n{len(others)} more of {len(self.trials)} trials failed." if others else ""
        return f"{self.handler} is not idempotent.\n\n{first}{more}"


def assert_idempotent(
    handler: Callable[..., Any],
    *args: Any,
    effects: Callable[[], int],
    store: Store | None = None,
    reset: Callable[[], object] | None = None,
    strict: bool = False,
    **kwargs: Any,
) -> Report:
    """Deliver ``handler(*args, **kwargs)`` in every way that a queue may. Raises `AssertionError` with what went wrong.

    It is delivered twice, five times at once, and an hour later; made to raise, killed, and cut off from its store
    at each of its steps, then delivered again. ``effects()`` is read before and after: however often it was
    delivered, the effect of one clean delivery must be there, once.

    - The store of a guarded function, and ``store`` if the handler uses one inside, is replaced by one in memory.
    - Each trial needs a world in which the operation is new. A `Message` gets a new id each time; where the handler
      keeps records of its own, ``reset`` clears them.
    - In mode L an effect may repeat when an attempt ends without a recorded success, and in mode S concurrent
      duplicates may both run: such trials are in the report's ``windows``; with ``strict`` they fail.

    Works on any handler, guarded or not. Async ones run in an event loop of their own; inside a running one use
    ``await aassert_idempotent(…)``.
    """
    if _is_async(handler):
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            trials = aassert_idempotent(
                handler, *args, effects=effects, store=store, reset=reset, strict=strict, **kwargs
            )
            return asyncio.run(trials)
        raise SyncAsyncMismatch("an event loop is running: await aassert_idempotent(…) instead")
    return _require_passed(run_sync(_run_trials(handler, args, kwargs, effects, store, reset, strict)))


async def aassert_idempotent(
    handler: Callable[..., Any],
    *args: Any,
    effects: Callable[[], int],
    store: Store | None = None,
    reset: Callable[[], object] | None = None,
    strict: bool = False,
    **kwargs: Any,
) -> Report:
    """`assert_idempotent`, in a running event loop."""
    return _require_passed(await _run_trials(handler, args, kwargs, effects, store, reset, strict))


def _require_passed(report: Report) -> Report:
    if report.failures:
        raise AssertionError(str(report))
    return report


async def _run_trials(
    handler: Any, args: Any, kwargs: Any, effects: Any, store: Any, reset: Any, strict: bool
) -> Report:
    trials = IdempotenceTrials(handler, args, kwargs, effects, store=store, reset=reset, strict=strict)
    return Report(name_of(handler), await trials.run())


def _is_async(handler: Any) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


class IdempotenceTrials:
    """Delivers one handler in every scenario, each in a world of its own."""

    def __init__(
        self,
        handler: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        effects: Callable[[], int],
        *,
        store: Store | None = None,
        reset: Callable[[], object] | None = None,
        strict: bool = False,
        on_trial: Callable[[Trial, int], object] = lambda trial, of: None,
    ) -> None:
        self._handler = handler
        self._is_async = _is_async(handler)
        self._args, self._kwargs = args, kwargs
        self._count = effects
        self._reset = reset
        self._on_trial = on_trial
        guarded = handler if isinstance(handler, Guarded) else None
        self._stores = {used for used in (store, guarded.store if guarded is not None else None) if used is not None}
        policy = guarded.policy if guarded is not None else None
        self._lapse = policy.lease * 2 if policy is not None else HOUR_US
        #: What the mode allows: a second effect after a delivery that recorded nothing, and beside a running one.
        self._may_rerun = bool(self._stores) and not strict
        self._may_overlap = policy is not None and policy.seen and not strict
        self._backend = FaultInjectingBackend()
        self._expected = 0
        self._total = 0

    async def run(self) -> list[Trial]:
        """Run every trial. A clean delivery comes first: its effect is what every other trial must end with."""
        clean = await self._deliver_cleanly()
        faults: list[tuple[Fault, Sequence[int]]] = [
            ("killed", clean.fault_points()),
            ("raises", clean.fault_points(at_store=False)),
            ("loses its store", clean.fault_points(at_store=True)),
        ]
        self._total = 3 + sum(len(points) for _, points in faults)
        return [
            await self._deliver_twice(),
            await self._deliver_concurrently(),
            await self._deliver_later(),
            *[await self._deliver_with_fault(fault, at) for fault, points in faults for at in points],
        ]

    # -- the scenarios

    async def _deliver_cleanly(self) -> FaultInjector:
        with self._world() as events:
            injector, before = FaultInjector(), self._count()
            error = await self._deliver(events, injector)
            if error is not None:
                raise ConfigurationError(
                    f"{name_of(self._handler)} raised in a clean delivery, so it cannot be tried: {error!r}"
                ) from error
            self._expected = self._count() - before
        if self._expected < 1:
            raise ConfigurationError(
                f"effects() did not grow when {name_of(self._handler)} was called once, so it counts something else: "
                "let it count what must not happen twice, rows, charges or mails. (Is the key done from an earlier "
                "call? Pass reset=, to clear what the handler keeps.)"
            )
        return injector

    async def _deliver_twice(self) -> Trial:
        with self._world() as events:
            before = self._count()
            results: list[Any] = []
            for _ in range(2):
                await self._deliver(events, FaultInjector(), results)
            if results and self._count() == before:
                raise ConfigurationError(
                    f"{name_of(self._handler)} had its effect when it was first called, and none in the next trial: it "
                    "remembers the key. Pass reset=, to clear what it keeps between trials"
                )
            if len(results) == 2 and results[0] != results[1]:
                return self._trial("delivered twice", before, events, why=f"the second got {results[1]!r} instead")
            return self._trial("delivered twice", before, events)

    async def _deliver_later(self) -> Trial:
        with self._world() as events:
            before = self._count()
            await self._deliver(events, FaultInjector())
            self._pass_time(events, HOUR_US)
            await self._deliver(events, FaultInjector())
            return self._trial("delivered again an hour later", before, events)

    async def _deliver_concurrently(self) -> Trial:
        with self._world() as events:
            before = self._count()
            args = self._message
            errors: list[BaseException | None] = []
            if self._is_async:
                calls = (self._handler(*args, **self._kwargs) for _ in range(CONCURRENT_DELIVERIES))
                results = await asyncio.gather(*calls, return_exceptions=True)
                errors = [result if isinstance(result, BaseException) else None for result in results]
            else:
                errors = _in_threads(lambda: self._handler(*args, **self._kwargs), FaultInjector.is_step)
            ran = sum(error is None for error in errors)
            events.append(f"{CONCURRENT_DELIVERIES} deliveries at once: {ran} returned, {_name_errors(errors)}")
            if ran < CONCURRENT_DELIVERIES:
                await self._redeliver_until_settled(events)
            return self._trial(CONCURRENT_SCENARIO, before, events, may_repeat=self._may_overlap)

    async def _deliver_with_fault(self, fault: Fault, at: int) -> Trial:
        with self._world() as events:
            before = self._count()
            injector = FaultInjector(fault, at)
            if await self._deliver(events, injector) is not None:  # else it was acked, and does not come again
                await self._redeliver_until_settled(events)
            step = injector.steps[at] if at < len(injector.steps) else "its end"
            return self._trial(fault, before, events, step, may_repeat=self._may_rerun)

    # -- steps of the scenarios

    @contextmanager
    def _world(self) -> Iterator[list[str]]:
        """Make a world in which the operation is new. Yields the list of its events."""
        if self._reset is not None:
            self._reset()
        self._backend = FaultInjectingBackend()
        self._message = tuple(
            replace(argument, id=(fresh := message_id()), key=fresh) if isinstance(argument, Message) else argument
            for argument in self._args
        )
        with ExitStack() as stack:
            for store in self._stores:
                stack.enter_context(override(store, Store(self._backend, sweep_every=None)))
            yield []

    async def _deliver(
        self, events: list[str], injector: FaultInjector, results: list[Any] | None = None
    ) -> BaseException | None:
        """Deliver the message once. Returns what the handler raised, or None."""
        self._backend.injector = injector
        error: BaseException | None = None
        before = self._count()
        try:
            with injector.trace_steps():
                value = self._handler(*self._message, **self._kwargs)
                if self._is_async:
                    value = await value
            if results is not None:
                results.append(value)
            outcome = "it returned"
        except Killed as killed:
            error, outcome = killed, f"its process was killed before {injector.steps[-1]}"
        except Exception as raised:
            error, outcome = raised, f"it raised {type(raised).__name__}: {raised}"
        finally:
            self._backend.injector = FaultInjector()
        events.append(f"delivered: {outcome}; {_effects(self._count() - before)}")
        return error

    async def _redeliver_until_settled(self, events: list[str]) -> None:
        """Redeliver, as a queue does, until the handler returns or ends without hope of success."""
        for _ in range(MAX_REDELIVERIES):
            self._pass_time(events, self._lapse)
            error = await self._deliver(events, FaultInjector())
            if error is None or isinstance(error, InDoubt | PermanentFailure):
                return
            if isinstance(error, EffectOnceError) and not isinstance(error, Retryable):
                return

    def _pass_time(self, events: list[str], span: int) -> None:
        if self._stores:
            self._backend.clock.advance_micros(span)
            events.append(f"{readable(span)} pass")

    def _trial(
        self,
        scenario: str,
        before: int,
        events: Sequence[str],
        step: str = "",
        *,
        may_repeat: bool = False,
        why: str = "",
    ) -> Trial:
        effects, expected = self._count() - before, self._expected
        verdict: Verdict = "broken" if why else "once"
        remedy = ""
        if effects < expected and not _parked(events):
            verdict, why, remedy = "lost", f"{_effects(effects)} instead of {expected}: it was lost", _LOST
        elif effects > expected:
            verdict = "may repeat" if may_repeat else "doubled"
            why = f"{_effects(effects)} instead of {expected}: it happened again"
            remedy = _remedy(scenario, step)
        trial = Trial(scenario, verdict, effects, expected, tuple(events), step, why, remedy)
        self._on_trial(trial, self._total)
        return trial


def _remedy(scenario: str, step: str) -> str:
    if step:
        return _TWO_STEPS
    return _CONCURRENT if scenario == CONCURRENT_SCENARIO else _UNGUARDED


def _parked(events: Sequence[str]) -> bool:
    """Tell whether the message ended where an operator finds it: in doubt, or failed for good."""
    return any(word in events[-1] for word in ("InDoubt", "AttemptsExhausted", "PermanentFailure"))


def _effects(number: int) -> str:
    return f"{number} effect{'' if number == 1 else 's'}"


_LOST = (
    "The delivery was taken for done without its effect: record it after the effect, or in one transaction with it "
    "(eo.Inbox), and let what failed be delivered again."
)
_UNGUARDED = (
    "The second delivery cannot know that there was a first: guard the handler with @eo.once(store, key=...), or "
    "with an eo.Inbox where the effect is a row of yours."
)
_CONCURRENT = (
    "Each delivery looked before any had recorded: looking and recording must be one atomic step, as in @eo.once or in "
    "an eo.Inbox."
)
_TWO_STEPS = (
    "The effect and the record of it are two steps, and the process ended between them: commit both in one "
    "transaction (eo.Inbox), or give the other side a key that is the same each time (eo.current().provider_key)."
)


class _Lockstep:
    """Keeps threads abreast: each waits at every line until all that still run are at one, however busy the machine.

    A thread that waits for something else (a lock, another's result) arrives nowhere: for such, all of them together
    wait no longer than ``patience`` seconds.
    """

    def __init__(self, threads: int, patience: float = 1.0) -> None:
        self._changed = threading.Condition()
        self._running = threads
        self._arrived = self._line = 0
        self._patience = patience

    def step(self) -> None:
        with self._changed:
            self._arrived += 1
            line, began = self._line, time.monotonic()
            self._go_on_if_all_are_there()
            if not self._changed.wait_for(lambda: self._line != line, max(self._patience, 0.001)):
                self._arrived -= 1
                self._patience -= time.monotonic() - began

    def leave(self) -> None:
        with self._changed:
            self._running -= 1
            self._go_on_if_all_are_there()

    def _go_on_if_all_are_there(self) -> None:
        if self._arrived >= self._running:
            self._arrived = 0
            self._line += 1
            self._changed.notify_all()


def _in_threads(call: Callable[[], Any], is_step: Callable[[FrameType], bool]) -> list[BaseException | None]:
    """Call it in several threads. Each stops at every line of the user's code, so that they really overlap."""
    errors: list[BaseException | None] = [None] * CONCURRENT_DELIVERIES
    together = _Lockstep(CONCURRENT_DELIVERIES)

    def pause(frame: FrameType, event: str, argument: Any) -> Any:
        if not is_step(frame):
            return None
        if event == "line":
            together.step()
        return pause

    def deliver(at: int) -> None:
        together.step()
        sys.settrace(pause)
        try:
            call()
        except BaseException as error:
            errors[at] = error
        finally:
            sys.settrace(None)
            together.leave()

    threads = [threading.Thread(target=deliver, args=(at,)) for at in range(CONCURRENT_DELIVERIES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def _name_errors(errors: Sequence[BaseException | None]) -> str:
    names = sorted({type(error).__name__ for error in errors if error is not None})
    return f"the others raised {', '.join(names)}" if names else "none raised"
