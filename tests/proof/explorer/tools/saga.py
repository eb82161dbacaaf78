"""`Saga`: every step is done, or every step that was done is undone, in reverse order; or it is on the operator's list.

The steps are calls to providers that keep keys and reject stale tokens, those of `current()` in a step. A call whose
reply was lost raises `OutcomeUnknown`, as an intent does.
"""

from __future__ import annotations

from typing import Any

from effectonce.core.guarded_call.run import current
from effectonce.core.retry import Retry
from effectonce.core.run_sync import run_sync
from effectonce.errors import OutcomeUnknown
from effectonce.record import Query
from effectonce.sagas.saga import Saga
from effectonce.values.durations import Duration
from tests.proof.explorer.provider import SimulatedProvider
from tests.proof.explorer.scenario import LEASE, MAX_CRASHES, RETENTION, Scenario
from tests.proof.explorer.simulation import Process, SimulatedDelivery, Simulation
from tests.proof.explorer.system import PermanentDecline, SystemUnderTest, Tag


class StaleToken(Exception):
    """A provider has seen a newer token."""


class FencedProvider(SimulatedProvider):
    """A provider that keeps keys, and the highest token of each effect."""

    def __init__(self, simulation: Simulation, window: int) -> None:
        super().__init__(simulation, window)
        self.tokens: dict[str, int] = {}

    async def send(self, effect: str, *, undo: bool) -> None:
        """Have ``effect``, or undo it, under the token and the key of the step that runs."""
        run = current()
        token, key = run.token, run.provider_key("modelled")
        name = f"-{effect}" if undo else f"+{effect}"

        def arrive() -> object:
            if token < self.tokens.get(effect, 0):
                return StaleToken
            self.tokens[effect] = token
            return self._execute(key, name)

        try:
            outcome = await self.ask(*self.simulation.current_delivery(), key, arrive)
        except TimeoutError as error:
            raise OutcomeUnknown(f"{name}: {error}", 1.0) from error
        if outcome is StaleToken:
            raise StaleToken(name)
        if outcome is None:
            raise PermanentDecline(name)

    def state_key(self) -> object:
        return tuple(self.effects), tuple(sorted(self.answers)), tuple(sorted(self.tokens.items()))


class SagaSystem(SystemUnderTest):
    """Three steps, of which the last cannot be undone: ``reserve``, ``charge`` (which may time out), ``ship``. The
    naive arm ``undo-blindly`` keeps no log: what raises is undone, and a crash begins anew."""

    retention: Duration = "30d"
    window = RETENTION * 1000  # of the providers: longer than any schedule

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self.saga: Saga[str] = Saga("explored", self.store, input=str, lease=LEASE / 1e6, retention=self.retention)
        timeout: dict[str, Any] = {"timeout": "5s", "grace": "5s"} if "slow" in scenario.faults else {}

        @self.saga.step(retry=Retry(1, max_crashes=MAX_CRASHES, jitter=False))
        async def reserve(key: str) -> None:
            await self.provider.send(f"{key}/reserve", undo=False)

        @reserve.compensate(retry=Retry(3, first=1e-6, cap=1e-6, max_crashes=MAX_CRASHES, jitter=False))
        async def release(key: str) -> None:
            await self.provider.send(f"{key}/reserve", undo=True)

        @self.saga.step(retry=Retry(1, max_crashes=MAX_CRASHES, jitter=False), **timeout)
        async def charge(key: str) -> None:
            await self.provider.send(f"{key}/charge", undo=False)

        @charge.compensate(retry=Retry(3, first=1e-6, cap=1e-6, max_crashes=MAX_CRASHES, jitter=False))
        async def refund(key: str) -> None:
            await self.provider.send(f"{key}/charge", undo=True)

        @self.saga.step(retry=Retry(1, max_crashes=MAX_CRASHES, jitter=False))
        async def ship(key: str) -> None:
            await self.provider.send(f"{key}/ship", undo=False)

    def open(self, simulation: Simulation) -> None:
        self.provider = FencedProvider(simulation, self.window)

    async def work(self, simulation: Simulation, process: Process, delivery: SimulatedDelivery) -> None:
        key = delivery.entry.key
        call: Any = (
            self._run_without_log(simulation, process, delivery) if self.scenario.naive else self.saga.arun(key, key)
        )
        await self.settle_after(simulation, process, delivery, call)

    async def _run_without_log(self, simulation: Simulation, process: Process, delivery: SimulatedDelivery) -> None:
        key, done = delivery.entry.key, []
        try:
            for step in ("reserve", "charge", "ship"):
                await self.provider.call(process, delivery, f"{key}/{step}/{delivery.number}", f"+{key}/{step}")
                done.append(step)
        except Exception:
            for step in reversed(done):
                await self.provider.call(process, delivery, f"{key}/{step}/{delivery.number}/undo", f"-{key}/{step}")
            raise

    def finish(self, simulation: Simulation) -> None:
        for entry in simulation.broker.unsettled():
            simulation.fail(
                "wedged", f"message {entry.number} ({entry.key}) is neither acked, parked nor dead-lettered"
            )
        in_doubt = len(run_sync(simulation.port.list(Query(state="in_doubt"))).records)
        for key in sorted({entry.key for entry in simulation.broker.entries}):
            states = {entry.state for entry in simulation.broker.entries if entry.key == key}
            effects = [effect for effect in self.provider.effects if effect[1:].startswith(f"{key}/")]
            done = [effect[1:] for effect in effects if effect[0] == "+"]
            undone = [effect[1:] for effect in effects if effect[0] == "-"]
            lost = "acked" in states and (len(set(done)) < 3 or bool(undone))
            standing = [step for step in done if step not in undone]
            doubled = len(done) - len(set(done)) + len(undone) - len(set(undone))
            if lost:
                simulation.fail("lost", f"{key}: it is done, and its effects are {', '.join(effects) or 'none'}")
            if states == {"dead"} and standing:
                simulation.fail(
                    "unbalanced", f"{key}: it failed, and these steps were not undone: {', '.join(standing)}"
                )
            if not set(undone) <= set(done):
                simulation.fail("unbalanced", f"{key}: undone without having been done: {', '.join(effects)}")
            if doubled:
                simulation.fail("doubled", f"{key}: {', '.join(effects)}")
            if undone != sorted(undone, key=lambda step: ("charge", "reserve").index(step.partition("/")[2])):
                simulation.fail("unbalanced", f"{key}: undone in the order {', '.join(undone)}")
            if "parked" in states and not in_doubt:
                simulation.fail("lost", f"{key}: in doubt, and not on the operator's list")
            simulation.tally[key] = (lost or (states == {"dead"} and bool(standing)), doubled)

    def state_key(self, simulation: Simulation, tag: Tag) -> object:
        return self.provider.state_key()
