"""Trials of a handler: a message is delivered to it in every way that a queue may, and its effects are counted.

Written once for sync and async: a handler of plain ``def`` never suspends, so sync code drives the same coroutines.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from inspect import iscoroutine
from operator import index
from typing import Any, Literal

from msgspec import Struct

from effectonce.core.run_sync import run_sync
from effectonce.core.shared_loop import shared_loop
from effectonce.errors import ConfigurationError
from effectonce.store import Store
from effectonce.values.durations import span_text

from .fault_points import Fault, FaultInjector
from .kept_store import KeptStoreBackend
from .override import override
from .subjects import CONCURRENT_DELIVERIES, HOUR_US, DeliveryResult, Subject, collecting_only_new_objects

CONCURRENT_SCENARIO = f"delivered {CONCURRENT_DELIVERIES} times at once"
MAX_REDELIVERIES = 5

TrialVerdict = Literal["once", "lost", "doubled", "may repeat", "broken"]

_EFFECTS_EXAMPLE = "len(charges)"

_CONCURRENT_REMEDY = (
    "Each delivery looked before any had recorded: looking and recording must be one atomic step, as in @eo.once or in "
    "an eo.Inbox."
)
_TWO_STEPS_REMEDY = (
    "The effect and the record of it are two steps, and the process ended between them: commit both in one "
    "transaction (eo.Inbox; in its handler, on the connection that it is called with), or give the other side a key "
    "that is the same each time (eo.current().provider_key)."
)


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
            tried = f"{self.handler}: {len(self.trials)} trials, nothing lost"
            if not self.windows:
                return f"{tried}, nothing doubled"
            repeated = f"the effect repeated in {len(self.windows)}, where its mode says it may"
            return f"{tried}, {repeated}. The first:\n\n{self.windows[0]}"
        first, *others = self.failures
        more = f"\n\n{len(others)} more of {len(self.trials)} trials failed." if others else ""
        return f"{self.handler} is not idempotent.\n\n{first}{more}"


class TrialWorld:
    """The surroundings of one trial, in which the operation is new: an empty store, new message ids, and what
    happened."""

    def __init__(self, subject: Subject, count_effects: Callable[[], int], keep_stores: Collection[Store]) -> None:
        self.backend = subject.make_backend()
        self.kept = {
            store: KeptStoreBackend(store.runtime.backend, survives_kills=self.backend.survives_kills)
            for store in keep_stores
        }
        self.events: list[str] = []
        self._operation = subject.begin(self.backend)
        self._count_effects = count_effects
        self._effects_before = count_effects()
        self._last: DeliveryResult | None = None

    @property
    def effects(self) -> int:
        """How many effects there were in this world."""
        return self._count_effects() - self._effects_before

    async def deliver(self, injector: FaultInjector | None = None) -> DeliveryResult:
        """Deliver the message once."""
        injector = injector or FaultInjector()
        self._inject_with(injector)
        effects_before = self.effects
        try:
            delivered = self._last = await self._operation.deliver(injector)
        finally:
            self._inject_with(FaultInjector())
        self.events.append(f"delivered: {delivered.outcome}; {_format_effects(self.effects - effects_before)}")
        return delivered

    def _inject_with(self, injector: FaultInjector) -> None:
        self.backend.injector = injector
        for kept in self.kept.values():
            kept.injector = injector

    async def deliver_concurrently(self) -> DeliveryResult:
        """Deliver the message several times at once."""
        delivered = self._last = await self._operation.deliver_concurrently()
        self.events.append(delivered.outcome)
        return delivered

    async def redeliver_until_settled(self, pause: int) -> None:
        """Redeliver, each time after ``pause`` microseconds, until the message is done, or is not retried."""
        for _ in range(MAX_REDELIVERIES):
            self.pass_time(pause)
            if (await self.deliver()).status != "redeliver":
                return

    def pass_time(self, span: int) -> None:
        for kept in self.kept.values():
            kept.end_leases()
        if span:
            self.backend.clock.advance_micros(span)
            self.events.append(f"{span_text(span)} pass")

    @property
    def is_parked(self) -> bool:
        """Whether the last delivery left the message to an operator: in doubt, or failed for good."""
        return self._last is not None and self._last.status == "parked"


def _differ(first: DeliveryResult, second: DeliveryResult) -> bool:
    """Whether two deliveries returned different values. Values that cannot say whether they are equal, as arrays and
    data frames cannot, are not compared."""
    try:
        return first.has_value and second.has_value and bool(first.value != second.value)
    except Exception:
        return False


def _format_effects(number: int) -> str:
    return f"{number} effect{'' if number == 1 else 's'}"


class IdempotenceTrials:
    """Delivers to one subject in every scenario, each in a world of its own."""

    def __init__(
        self,
        subject: Subject,
        effects: Callable[[], int],
        *,
        reset: Callable[[], object] | None = None,
        strict: bool = False,
        keep_stores: Collection[Store] = (),
        on_trial: Callable[[Trial, int], object] = lambda trial, of: None,
    ) -> None:
        if not callable(effects):
            raise ConfigurationError(
                f"effects= is a function that returns a number; write effects=lambda: {_EFFECTS_EXAMPLE}"
            )
        self._subject = subject
        self._effects = effects
        self._reset = reset
        self._strict = strict
        self._keep_stores = keep_stores
        self._on_trial = on_trial
        self._may_rerun = False  # known after the clean delivery
        self._expected = 0
        self._total = 0

    def _count_effects(self) -> int:
        counted: Any = self._effects()
        try:
            return index(counted)
        except TypeError:
            if iscoroutine(counted):
                counted.close()
            raise ConfigurationError(
                f"effects() returned a {type(counted).__name__}, and must return a whole number: how many effects "
                f"there were, as in effects=lambda: {_EFFECTS_EXAMPLE}"
            ) from None

    def run_blocking(self) -> Report:
        """`run`, on the shared event loop where the subject is async."""
        if not self._subject.is_async:
            return run_sync(self.run())
        return shared_loop.run(self.run(), "an event loop is running: await aassert_idempotent(…) instead")

    async def run(self) -> Report:
        """Run every trial, each in a world of its own."""
        with collecting_only_new_objects():
            async with self._subject.running():
                return Report(self._subject.name, await self._run_trials())

    async def _run_trials(self) -> list[Trial]:
        """Deliver in every scenario, first cleanly: every other trial must end with the effect of that one."""
        clean = await self._deliver_cleanly()
        self._may_rerun = self._subject.may_rerun(clean) and not self._strict
        faults: list[tuple[Fault, Sequence[int]]] = [
            ("killed", clean.fault_points()),
            ("raises", clean.fault_points("line")),
            ("loses its store", clean.fault_points("store")),
        ]
        self._total = 3 + sum(len(points) for _, points in faults)
        return [
            await self._deliver_twice(),
            await self._deliver_concurrently(),
            await self._deliver_later(),
            *[await self._deliver_with_fault(fault, at) for fault, points in faults for at in points],
        ]

    @asynccontextmanager
    async def _world(self) -> AsyncIterator[TrialWorld]:
        if self._reset is not None:
            self._reset()
        world = TrialWorld(self._subject, self._count_effects, self._keep_stores)
        in_memory = Store(world.backend, sweep_every=None)
        async with AsyncExitStack() as stack:
            for store, backend in world.kept.items():
                stack.callback(backend.forget_records)
                observed = Store(backend, sweep_every=None)
                observed.runtime.privacy = store.runtime.privacy
                if self._subject.is_async:
                    stack.push_async_callback(observed.aclose)
                else:
                    stack.callback(observed.close)
                stack.enter_context(override(store, observed))
            for store in self._subject.stores:
                if store not in world.kept:
                    stack.enter_context(override(store, in_memory))
            yield world

    # -- the scenarios

    async def _deliver_cleanly(self) -> FaultInjector:
        injector, name = FaultInjector(), self._subject.name
        async with self._world() as world:
            delivered = await world.deliver(injector)
            self._expected = world.effects
        if delivered.status != "done":
            raise ConfigurationError(
                f"a clean delivery to {name} was not done, so it cannot be tried: {delivered.outcome}"
            ) from delivered.error
        if self._expected < 1:
            raise ConfigurationError(
                f"effects() did not grow when {name} was called once, so it counts something else: let it count what "
                "must not happen twice, rows, charges or mails. (Is the key done from an earlier call? Pass reset=, to "
                "clear what the handler keeps.)"
            )
        return injector

    async def _deliver_twice(self) -> Trial:
        async with self._world() as world:
            first, second = [await world.deliver() for _ in range(2)]
            if first.status == "done" and not world.effects:
                raise ConfigurationError(
                    f"{self._subject.name} had its effect when it was first called, and none in the next trial: it "
                    "remembers the key. Pass reset=, to clear what it keeps between trials"
                )
            why = f"the second got {second.value!r} instead" if _differ(first, second) else ""
            return self._end_trial(world, "delivered twice", why=why)

    async def _deliver_later(self) -> Trial:
        async with self._world() as world:
            await world.deliver()
            world.pass_time(HOUR_US if self._subject.stores else 0)
            await world.deliver()
            return self._end_trial(world, "delivered again an hour later")

    async def _deliver_concurrently(self) -> Trial:
        async with self._world() as world:
            if (await world.deliver_concurrently()).status == "redeliver":
                await world.redeliver_until_settled(self._subject.redelivery_pause_us)
            may_overlap = self._subject.may_overlap and not self._strict
            return self._end_trial(world, CONCURRENT_SCENARIO, may_repeat=may_overlap)

    async def _deliver_with_fault(self, fault: Fault, at: int) -> Trial:
        async with self._world() as world:
            injector = FaultInjector(fault, at)
            if (await world.deliver(injector)).status == "redeliver":
                await world.redeliver_until_settled(self._subject.redelivery_pause_us)
            step = injector.steps[at].description if at < len(injector.steps) else "its end"
            return self._end_trial(world, fault, step, may_repeat=self._may_rerun)

    def _end_trial(
        self, world: TrialWorld, scenario: str, step: str = "", *, may_repeat: bool = False, why: str = ""
    ) -> Trial:
        effects, expected = world.effects, self._expected
        verdict: TrialVerdict = "broken" if why else "once"
        remedy = ""
        if effects < expected and not world.is_parked:
            verdict, remedy = "lost", self._subject.lost_remedy
            why = f"{_format_effects(effects)} instead of {expected}: it was lost"
        elif effects > expected:
            verdict = "may repeat" if may_repeat else "doubled"
            why = f"{_format_effects(effects)} instead of {expected}: it happened again"
            remedy = self._remedy_for(scenario, step)
        trial = Trial(scenario, verdict, effects, expected, tuple(world.events), step, why, remedy)
        self._on_trial(trial, self._total)
        return trial

    def _remedy_for(self, scenario: str, step: str) -> str:
        if step:
            return _TWO_STEPS_REMEDY
        return _CONCURRENT_REMEDY if scenario == CONCURRENT_SCENARIO else self._subject.unguarded_remedy
