"""Modes K and I: `Intents`, at a provider that keeps keys for a while, or not at all.

K: no effect twice and none silently lost inside the provider's window, in doubt after it. I: no effect twice, and every
ambiguous outcome is on the operator's list.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from effectonce.core.run_sync import run_sync
from effectonce.intents.intents import Intents
from effectonce.intents.operation import Intent, IntentOperation
from effectonce.providers import Provider, Verdict
from effectonce.record import Query
from tests.proof.explorer.provider import MARGIN, WINDOW, SimulatedProvider
from tests.proof.explorer.scenario import LEASE, Scenario
from tests.proof.explorer.simulation import Process, SimulatedDelivery, Simulation
from tests.proof.explorer.system import SCOPE, SystemUnderTest, Tag


class IntentsSystem(SystemUnderTest):
    """``worker``: ``keyed``, ``keyless``, ``asked`` (keyless, with a reconciler), or the naive arms ``new-key`` (a key
    for every attempt) and ``mark-before`` (recorded, then sent)."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self.keyed = scenario.worker in ("keyed", "new-key")
        self.intents = intents = Intents(self.store, scope=SCOPE)
        described = Provider(
            "modelled", carrier="header" if self.keyed else "none", window=WINDOW / 1e6 if self.keyed else None
        )
        options: dict[str, Any] = {"margin": MARGIN / 1e6} if self.keyed else {"without_key": "at-most-once"}

        @intents.operation(described, "charge", lease=LEASE / 1e6, **options)
        async def charge(intent: Intent[str]) -> str:
            return await self.charge(intent)

        self.operation: IntentOperation[str, Coroutine[Any, Any, str]] = charge
        if scenario.worker == "asked":

            @intents.reconcile(described)
            async def look_up(intent: Intent[str]) -> Verdict:
                return await self.look_up(intent)

    def open(self, simulation: Simulation) -> None:
        self.provider = SimulatedProvider(simulation, WINDOW if self.keyed else None)

    async def charge(self, intent: Intent[str]) -> str:
        """Call the provider, as the user's function does."""
        assert self.simulation is not None
        return await self.provider.call(*self.simulation.current_delivery(), intent.provider_key, intent.request)

    async def look_up(self, intent: Intent[str]) -> Verdict:
        assert self.simulation is not None
        there = await self.provider.ask(
            *self.simulation.current_delivery(), intent.provider_key, lambda: intent.request in self.provider.effects
        )
        return Verdict.success(f"receipt-{intent.request}") if there else Verdict.not_executed("it is not there")

    async def work(self, simulation: Simulation, process: Process, delivery: SimulatedDelivery) -> None:
        key = delivery.entry.key
        if self.scenario.naive:
            call: Any = self._run_naively(simulation, process, delivery)
        else:
            call = self.operation(key, key=key)
        await self.settle_after(simulation, process, delivery, call)

    async def _run_naively(self, simulation: Simulation, process: Process, delivery: SimulatedDelivery) -> None:
        key = delivery.entry.key
        before = self.scenario.worker == "mark-before"
        seen = await simulation.ask_memory(process, "check", lambda: key in simulation.memory)
        if before:
            await simulation.ask_memory(process, "mark", lambda: simulation.memory.add(key))
        if not seen:
            await self.provider.call(process, delivery, f"{key}-{delivery.number}", key)
        if not before:
            await simulation.ask_memory(process, "mark", lambda: simulation.memory.add(key))

    def finish(self, simulation: Simulation) -> None:
        for entry in simulation.broker.unsettled():
            simulation.fail(
                "wedged", f"message {entry.number} ({entry.key}) is neither acked, parked nor dead-lettered"
            )
        listed = len(run_sync(simulation.port.list(Query(state="in_doubt"))).records)
        parked: set[str] = set()
        for key in sorted({entry.key for entry in simulation.broker.entries}):
            states = {entry.state for entry in simulation.broker.entries if entry.key == key}
            effects = self.provider.effects.count(key)
            lost = "acked" in states and not effects
            if "parked" in states:
                parked.add(key)
            if lost:
                simulation.fail("lost", f"{key}: acked, and the provider never executed it")
            if effects > 1:
                simulation.fail("doubled", f"{key}: the provider executed it {effects} times")
            if effects and states == {"dead"}:
                simulation.fail("lost", f"{key}: given up as failed, and the provider executed it")
            simulation.tally[key] = (lost, max(0, effects - 1))
        if listed < len(parked):
            simulation.fail("lost", f"{len(parked)} are in doubt, and {listed} are on the operator's list")

    def state_key(self, simulation: Simulation, tag: Tag) -> object:
        return self.provider.state_key()
