"""Trials of a handler: a message is delivered to it in every way that a queue may, and its effects are counted.

Written once for sync and async: a handler of plain ``def`` never suspends, so sync code drives the same coroutines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from effectonce.core.run_sync import refuse_in_event_loop, run_sync
from effectonce.errors import ConfigurationError, EffectOnceError, InDoubt, PermanentFailure, Retryable
from effectonce.guard.introspection import is_async, name_of
from effectonce.guard.once import Guarded
from effectonce.message import Message, message_id
from effectonce.store import Store
from effectonce.values.durations import span_text

from .fault_points import Fault, FaultInjectingBackend, FaultInjector, Killed
from .lockstep import call_in_lockstep
from .override import override

CONCURRENT_DELIVERIES = 5
CONCURRENT_SCENARIO = f"delivered {CONCURRENT_DELIVERIES} times at once"
MAX_REDELIVERIES = 5
HOUR_US = 3_600_000_000
PARKING_ERRORS = (InDoubt, PermanentFailure)  # after these a message is not redelivered, and an operator finds it

TrialVerdict = Literal["once", "lost", "doubled", "may repeat", "broken"]

_LOST_REMEDY = (
    "The delivery was taken for done without its effect: record it after the effect, or in one transaction with it "
    "(eo.Inbox), and let what failed be delivered again."
)
_UNGUARDED_REMEDY = (
    "The second delivery cannot know that there was a first: guard the handler with @eo.once(store, key=...), or "
    "with an eo.Inbox where the effect is a row of yours."
)
_CONCURRENT_REMEDY = (
    "Each delivery looked before any had recorded: looking and recording must be one atomic step, as in @eo.once or in "
    "an eo.Inbox."
)
_TWO_STEPS_REMEDY = (
    "The effect and the record of it are two steps, and the process ended between them: commit both in one "
    "transaction (eo.Inbox), or give the other side a key that is the same each time (eo.current().provider_key)."
)


def _remedy_for(scenario: str, step: str) -> str:
    if step:
        return _TWO_STEPS_REMEDY
    return _CONCURRENT_REMEDY if scenario == CONCURRENT_SCENARIO else _UNGUARDED_REMEDY


class Trial(Struct, frozen=True):
    """One way to deliver one message, and its outcome."""

    scenario: str  # "delivered twice", "killed", …
    verdict: TrialVerdict
    effects: int
    expected: int
    timeline: Sequence[str]  # what happened, in order
    step: str = ""  # where a fault ended the first delivery
    why: str = ""
    remedy: str = ""

    def __str__(self) -> str:
        title = f"{self.scenario}{f' before {self.step}' if self.step else ''}: {self.why or self.verdict}"
        events = [f"  {number}. {line}" for number, line in enumerate(self.timeline, 1)]
        return "\n".join([title, *events, *([f"  {self.remedy}"] if self.remedy else [])])


class Report(Struct, frozen=True):
    """Every trial of one handler. ``failures`` broke a promise; in ``windows`` the effect repeated as its mode
    allows."""

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


class TrialWorld:
    """The surroundings of one trial, in which the operation is new: an empty store, new message ids, and what
    happened."""

    def __init__(
        self, handler: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], count_effects: Callable[[], int]
    ) -> None:
        self.backend = FaultInjectingBackend()
        self.events: list[str] = []
        self._handler = handler
        self._args = tuple(_renew_message(argument) for argument in args)
        self._kwargs = kwargs
        self._count_effects = count_effects
        self._effects_before = count_effects()
        self._last_errors: Sequence[BaseException] = ()  # of the last delivery, or of all that were made at once

    @property
    def effects(self) -> int:
        """How many effects there were in this world."""
        return self._count_effects() - self._effects_before

    def call_handler(self) -> Any:
        return self._handler(*self._args, **self._kwargs)

    async def deliver(
        self, injector: FaultInjector | None = None, results: list[Any] | None = None
    ) -> BaseException | None:
        """Deliver the message once. Returns what the handler raised, or None."""
        injector = self.backend.injector = injector or FaultInjector()
        effects_before = self.effects
        error: BaseException | None = None
        try:
            with injector.trace_steps():
                value = self.call_handler()
                if is_async(self._handler):
                    value = await value
            if results is not None:
                results.append(value)
            outcome = "it returned"
        except Killed as killed:
            error, outcome = killed, f"its process was killed before {injector.steps[-1].description}"
        except Exception as raised:
            error, outcome = raised, f"it raised {type(raised).__name__}: {raised}"
        finally:
            self.backend.injector = FaultInjector()
        self._last_errors = () if error is None else (error,)
        self.events.append(f"delivered: {outcome}; {_format_effects(self.effects - effects_before)}")
        return error

    async def deliver_concurrently(self) -> bool:
        """Deliver the message several times at once. Returns whether every handler returned."""
        if is_async(self._handler):
            calls = [self.call_handler() for _ in range(CONCURRENT_DELIVERIES)]
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
        else:
            outcomes = call_in_lockstep(self.call_handler, CONCURRENT_DELIVERIES, FaultInjector.is_step)
        errors = self._last_errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        names = ", ".join(sorted({type(error).__name__ for error in errors}))
        others = f"the others raised {names}" if names else "none raised"
        returned = CONCURRENT_DELIVERIES - len(errors)
        self.events.append(f"{CONCURRENT_DELIVERIES} deliveries at once: {returned} returned, {others}")
        return not errors

    async def redeliver_until_settled(self, pause: int) -> None:
        """Redeliver, each time after ``pause`` microseconds, until the handler returns, or raises what a queue does not
        retry."""
        for _ in range(MAX_REDELIVERIES):
            self.pass_time(pause)
            error = await self.deliver()
            if error is None or isinstance(error, PARKING_ERRORS):
                return
            if isinstance(error, EffectOnceError) and not isinstance(error, Retryable):
                return

    def pass_time(self, span: int) -> None:
        if span:
            self.backend.clock.advance_micros(span)
            self.events.append(f"{span_text(span)} pass")

    @property
    def is_parked(self) -> bool:
        """Whether the last delivery left the message to an operator: in doubt, or failed for good."""
        return any(isinstance(error, PARKING_ERRORS) for error in self._last_errors)


def _renew_message(argument: Any) -> Any:
    if not isinstance(argument, Message):
        return argument
    fresh_id = message_id()
    return replace(argument, id=fresh_id, key=fresh_id)


def _format_effects(number: int) -> str:
    return f"{number} effect{'' if number == 1 else 's'}"


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
        self._args, self._kwargs = args, kwargs
        self._count_effects = effects
        self._reset = reset
        self._on_trial = on_trial
        guarded = handler if isinstance(handler, Guarded) else None
        policy = guarded.policy if guarded is not None else None
        self._stores = {used for used in (store, guarded.store if guarded is not None else None) if used is not None}
        #: How far the clock of the store is advanced between deliveries; a handler without a store of ours has none.
        self._redelivery_pause = HOUR_US if self._stores else 0
        if policy is not None:
            self._redelivery_pause = policy.lease_us * 2
        #: What the mode allows: a second effect after a delivery that recorded nothing, or during a delivery.
        self._may_rerun = bool(self._stores) and not strict
        self._may_overlap = policy is not None and policy.seen_set and not strict
        self._expected = 0
        self._total = 0

    def run_blocking(self) -> Report:
        """`run`, in an event loop of its own where the handler is async."""
        if not is_async(self._handler):
            return run_sync(self.run())
        refuse_in_event_loop("an event loop is running: await aassert_idempotent(…) instead")
        return asyncio.run(self.run())

    async def run(self) -> Report:
        """Run every trial. A clean delivery comes first: its effect is what every other trial must end with."""
        clean = await self._deliver_cleanly()
        faults: list[tuple[Fault, Sequence[int]]] = [
            ("killed", clean.fault_points()),
            ("raises", clean.fault_points(at_store=False)),
            ("loses its store", clean.fault_points(at_store=True)),
        ]
        self._total = 3 + sum(len(points) for _, points in faults)
        trials = [
            await self._deliver_twice(),
            await self._deliver_concurrently(),
            await self._deliver_later(),
            *[await self._deliver_with_fault(fault, at) for fault, points in faults for at in points],
        ]
        return Report(name_of(self._handler), trials)

    @contextmanager
    def _world(self) -> Iterator[TrialWorld]:
        if self._reset is not None:
            self._reset()
        world = TrialWorld(self._handler, self._args, self._kwargs, self._count_effects)
        with ExitStack() as stack:
            for store in self._stores:
                stack.enter_context(override(store, Store(world.backend, sweep_every=None)))
            yield world

    # -- the scenarios

    async def _deliver_cleanly(self) -> FaultInjector:
        injector = FaultInjector()
        with self._world() as world:
            error = await world.deliver(injector)
            self._expected = world.effects
        if error is not None:
            raise ConfigurationError(
                f"{name_of(self._handler)} raised in a clean delivery, so it cannot be tried: {error!r}"
            ) from error
        if self._expected < 1:
            raise ConfigurationError(
                f"effects() did not grow when {name_of(self._handler)} was called once, so it counts something else: "
                "let it count what must not happen twice, rows, charges or mails. (Is the key done from an earlier "
                "call? Pass reset=, to clear what the handler keeps.)"
            )
        return injector

    async def _deliver_twice(self) -> Trial:
        with self._world() as world:
            results: list[Any] = []
            for _ in range(2):
                await world.deliver(results=results)
            if results and not world.effects:
                raise ConfigurationError(
                    f"{name_of(self._handler)} had its effect when it was first called, and none in the next trial: it "
                    "remembers the key. Pass reset=, to clear what it keeps between trials"
                )
            differ = len(results) == 2 and results[0] != results[1]
            why = f"the second got {results[1]!r} instead" if differ else ""
            return self._end_trial(world, "delivered twice", why=why)

    async def _deliver_later(self) -> Trial:
        with self._world() as world:
            await world.deliver()
            world.pass_time(HOUR_US if self._stores else 0)
            await world.deliver()
            return self._end_trial(world, "delivered again an hour later")

    async def _deliver_concurrently(self) -> Trial:
        with self._world() as world:
            if not await world.deliver_concurrently():
                await world.redeliver_until_settled(self._redelivery_pause)
            return self._end_trial(world, CONCURRENT_SCENARIO, may_repeat=self._may_overlap)

    async def _deliver_with_fault(self, fault: Fault, at: int) -> Trial:
        with self._world() as world:
            injector = FaultInjector(fault, at)
            if await world.deliver(injector) is not None:  # otherwise it was acked, and is not redelivered
                await world.redeliver_until_settled(self._redelivery_pause)
            step = injector.steps[at].description if at < len(injector.steps) else "its end"
            return self._end_trial(world, fault, step, may_repeat=self._may_rerun)

    def _end_trial(
        self, world: TrialWorld, scenario: str, step: str = "", *, may_repeat: bool = False, why: str = ""
    ) -> Trial:
        effects, expected = world.effects, self._expected
        verdict: TrialVerdict = "broken" if why else "once"
        remedy = ""
        if effects < expected and not world.is_parked:
            verdict, remedy = "lost", _LOST_REMEDY
            why = f"{_format_effects(effects)} instead of {expected}: it was lost"
        elif effects > expected:
            verdict = "may repeat" if may_repeat else "doubled"
            why = f"{_format_effects(effects)} instead of {expected}: it happened again"
            remedy = _remedy_for(scenario, step)
        trial = Trial(scenario, verdict, effects, expected, tuple(world.events), step, why, remedy)
        self._on_trial(trial, self._total)
        return trial
