"""`assert_idempotent`: does a handler survive being delivered twice?

Written once for both colours: a handler of plain ``def`` never suspends, so sync code drives the same coroutines.
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

from msgspec import Struct
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

from .fault_points import End, Killed, Life, MortalBackend
from .override import override

AT_ONCE = 5
_AT_ONCE = f"delivered {AT_ONCE} times at once"
MOST_REDELIVERIES = 5
LATER = 3_600_000_000

Verdict = Literal["once", "lost", "doubled", "may repeat", "broken"]


class Trial(Struct, frozen=True):
    """One way to deliver one message, and what came of it."""

    scenario: str  # "delivered twice", "killed", …
    verdict: Verdict
    effects: int
    expected: int
    told: Sequence[str]  # what happened, in order
    step: str = ""  # where the first delivery ended, if it was made to
    why: str = ""
    remedy: str = ""

    def __str__(self) -> str:
        title = f"{self.scenario}{f' before {self.step}' if self.step else ''}: {self.why or self.verdict}"
        told = [f"  {number}. {line}" for number, line in enumerate(self.told, 1)]
        return "\n".join([title, *told, *([f"  {self.remedy}"] if self.remedy else [])])


class Report(Struct, frozen=True):
    """Every trial of one handler. ``failures`` break a promise; ``windows`` are where its mode says it may repeat."""

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
    """Deliver ``handler(*args, **kwargs)`` in every way that a queue might; `AssertionError` says what went wrong.

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
            return asyncio.run(
                aassert_idempotent(handler, *args, effects=effects, store=store, reset=reset, strict=strict, **kwargs)
            )
        raise SyncAsyncMismatch("an event loop is running: await aassert_idempotent(…) instead")
    return _passed(run_sync(_report(handler, args, kwargs, effects, store, reset, strict)))


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
    return _passed(await _report(handler, args, kwargs, effects, store, reset, strict))


def _passed(report: Report) -> Report:
    if report.failures:
        raise AssertionError(str(report))
    return report


async def _report(handler: Any, args: Any, kwargs: Any, effects: Any, store: Any, reset: Any, strict: bool) -> Report:
    bench = Bench(handler, args, kwargs, effects, store=store, reset=reset, strict=strict)
    return Report(name_of(handler), await bench.run())


def _is_async(handler: Any) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


class Bench:
    """Where one handler is tried."""

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
        plan = handler._plan if isinstance(handler, Guarded) else None
        self._stores = {each for each in (store, plan.store if plan is not None else None) if each is not None}
        policy = None if plan is None else plan.policy or plan.build_policy()
        self._lapse = policy.lease * 2 if policy is not None else LATER
        #: What the mode itself allows: a second effect after an end without a record, and beside a running first.
        self._may_rerun = bool(self._stores) and not strict
        self._may_overlap = policy is not None and policy.seen and not strict
        self._backend = MortalBackend()
        self._expected = 0
        self._total = 0

    async def run(self) -> list[Trial]:
        """Every trial. The first is a clean delivery: what it does is what each other one must come to."""
        clean = await self._clean()
        ends: list[tuple[End, Sequence[int]]] = [
            ("killed", clean.points()),
            ("raises", clean.points(at_store=False)),
            ("loses its store", clean.points(at_store=True)),
        ]
        self._total = 3 + sum(len(points) for _, points in ends)
        return [
            await self._twice(),
            await self._at_once(),
            await self._later(),
            *[await self._ended(end, at) for end, points in ends for at in points],
        ]

    # -- the scenarios

    async def _clean(self) -> Life:
        with self._world() as told:
            life, before = Life(), self._count()
            error = await self._deliver(told, life)
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
        return life

    async def _twice(self) -> Trial:
        with self._world() as told:
            before = self._count()
            results: list[Any] = []
            for _ in range(2):
                await self._deliver(told, Life(), results)
            if results and self._count() == before:
                raise ConfigurationError(
                    f"{name_of(self._handler)} had its effect when it was first called, and none in the next trial: it "
                    "remembers the key. Pass reset=, to clear what it keeps between trials"
                )
            if len(results) == 2 and results[0] != results[1]:
                return self._trial("delivered twice", before, told, why=f"the second got {results[1]!r} instead")
            return self._trial("delivered twice", before, told)

    async def _later(self) -> Trial:
        with self._world() as told:
            before = self._count()
            await self._deliver(told, Life())
            self._pass_time(told, LATER)
            await self._deliver(told, Life())
            return self._trial("delivered again an hour later", before, told)

    async def _at_once(self) -> Trial:
        with self._world() as told:
            before = self._count()
            args = self._message
            errors: list[BaseException | None] = []
            if self._is_async:
                calls = (self._handler(*args, **self._kwargs) for _ in range(AT_ONCE))
                results = await asyncio.gather(*calls, return_exceptions=True)
                errors = [each if isinstance(each, BaseException) else None for each in results]
            else:
                errors = _in_threads(lambda: self._handler(*args, **self._kwargs), Life.is_step)
            ran = sum(error is None for error in errors)
            told.append(f"{AT_ONCE} deliveries at once: {ran} returned, {_named(errors)}")
            if ran < AT_ONCE:
                await self._until_settled(told)
            return self._trial(_AT_ONCE, before, told, may_repeat=self._may_overlap)

    async def _ended(self, end: End, at: int) -> Trial:
        with self._world() as told:
            before = self._count()
            life = Life(end, at)
            if await self._deliver(told, life) is not None:  # else it was acked, and does not come again
                await self._until_settled(told)
            step = life.steps[at] if at < len(life.steps) else "its end"
            return self._trial(end, before, told, step, may_repeat=self._may_rerun)

    # -- what they are made of

    @contextmanager
    def _world(self) -> Iterator[list[str]]:
        """A world in which the operation is new."""
        if self._reset is not None:
            self._reset()
        self._backend = MortalBackend()
        self._message = tuple(
            replace(each, id=(fresh := message_id()), key=fresh) if isinstance(each, Message) else each
            for each in self._args
        )
        with ExitStack() as stack:
            for store in self._stores:
                stack.enter_context(override(store, Store(self._backend, sweep_every=None)))
            yield []

    async def _deliver(self, told: list[str], life: Life, results: list[Any] | None = None) -> BaseException | None:
        """Deliver it once; what it raised, if anything."""
        self._backend.life = life
        error: BaseException | None = None
        before = self._count()
        try:
            with life.lived():
                value = self._handler(*self._message, **self._kwargs)
                if self._is_async:
                    value = await value
            if results is not None:
                results.append(value)
            came = "it returned"
        except Killed as killed:
            error, came = killed, f"its process was killed before {life.steps[-1]}"
        except Exception as raised:
            error, came = raised, f"it raised {type(raised).__name__}: {raised}"
        finally:
            self._backend.life = Life()
        told.append(f"delivered: {came}; {_effects(self._count() - before)}")
        return error

    async def _until_settled(self, told: list[str]) -> None:
        """Deliver it again, as a queue does, until it returns or comes to an end that is no success."""
        for _ in range(MOST_REDELIVERIES):
            self._pass_time(told, self._lapse)
            error = await self._deliver(told, Life())
            if error is None or isinstance(error, InDoubt | PermanentFailure):
                return
            if isinstance(error, EffectOnceError) and not isinstance(error, Retryable):
                return

    def _pass_time(self, told: list[str], span: int) -> None:
        if self._stores:
            self._backend.clock.advance_micros(span)
            told.append(f"{readable(span)} pass")

    def _trial(
        self,
        scenario: str,
        before: int,
        told: Sequence[str],
        step: str = "",
        *,
        may_repeat: bool = False,
        why: str = "",
    ) -> Trial:
        effects, expected = self._count() - before, self._expected
        verdict: Verdict = "broken" if why else "once"
        remedy = ""
        if effects < expected and not _parked(told):
            verdict, why, remedy = "lost", f"{_effects(effects)} instead of {expected}: it was lost", _LOST
        elif effects > expected:
            verdict = "may repeat" if may_repeat else "doubled"
            why = f"{_effects(effects)} instead of {expected}: it happened again"
            remedy = _TWO_STEPS if step else _ABREAST if scenario == _AT_ONCE else _UNGUARDED
        trial = Trial(scenario, verdict, effects, expected, tuple(told), step, why, remedy)
        self._on_trial(trial, self._total)
        return trial


def _parked(told: Sequence[str]) -> bool:
    """Whether it ended where an operator finds it: in doubt, or failed for good."""
    return any(word in told[-1] for word in ("InDoubt", "AttemptsExhausted", "PermanentFailure"))


def _effects(number: int) -> str:
    return f"{number} effect{'' if number == 1 else 's'}"


_LOST = (
    "The delivery was taken for done without its effect: record it after the effect, or in one transaction with it "
    "(eo.Inbox), and let what failed be delivered again."
)
_UNGUARDED = (
    "Nothing tells the second delivery that there was a first: guard the handler with @eo.once(store, key=...), or "
    "with an eo.Inbox where the effect is a row of yours."
)
_ABREAST = (
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
    """Call it in several threads. Each stops at every line of the user's code, so that they really are abreast."""
    errors: list[BaseException | None] = [None] * AT_ONCE
    together = _Lockstep(AT_ONCE)

    def tread(frame: FrameType, event: str, argument: Any) -> Any:
        if not is_step(frame):
            return None
        if event == "line":
            together.step()
        return tread

    def deliver(at: int) -> None:
        together.step()
        sys.settrace(tread)
        try:
            call()
        except BaseException as error:
            errors[at] = error
        finally:
            sys.settrace(None)
            together.leave()

    threads = [threading.Thread(target=deliver, args=(at,)) for at in range(AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def _named(errors: Sequence[BaseException | None]) -> str:
    names = sorted({type(error).__name__ for error in errors if error is not None})
    return f"the others raised {', '.join(names)}" if names else "none raised"
