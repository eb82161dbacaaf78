"""Modes K and I: `Intents`, at a provider that keeps keys for a while, or not at all.

K: no effect twice and none silently lost inside the provider's window, in doubt after it. I: no effect twice, and every
ambiguous outcome is on the operator's list.
"""

from __future__ import annotations

from typing import Any

from effectonce.core.drive import drive
from effectonce.intents.intents import Intents
from effectonce.intents.operations import Intent
from effectonce.providers import Provider as Described
from effectonce.providers import Verdict
from effectonce.record import Query
from effectonce.testing.explorer.provider import MARGIN, WINDOW, Provider
from effectonce.testing.explorer.scenario import LEASE, Scenario
from effectonce.testing.explorer.stage import SCOPE, Stage, Tag
from effectonce.testing.explorer.world import Delivery, Process, World


class IntentsStage(Stage):
    """``worker``: ``keyed``, ``keyless``, ``asked`` (keyless, with a reconciler), or the naive arms ``new-key`` (a key
    for every attempt) and ``mark-before`` (recorded, then sent)."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self.keyed = scenario.worker in ("keyed", "new-key")
        self.intents = intents = Intents(self.store, scope=SCOPE)
        described = Described(
            name="modelled", carrier="header" if self.keyed else "none", window=WINDOW if self.keyed else None
        )
        options: dict[str, Any] = {"margin": MARGIN / 1e6} if self.keyed else {"without_key": "at-most-once"}

        @intents.operation(described, "charge", lease=LEASE / 1e6, **options)
        async def charge(intent: Intent[str]) -> str:
            return await self.charge(intent)

        self.operation = charge
        if scenario.worker == "asked":

            @intents.reconcile(described)
            async def look_up(intent: Intent[str]) -> Verdict:
                return await self.look_up(intent)

    def open(self, world: World) -> None:
        self.provider = Provider(world, WINDOW if self.keyed else None)

    async def charge(self, intent: Intent[str]) -> str:
        """What the user has written."""
        assert self.world is not None
        return await self.provider.call(*self.world.whose(), intent.provider_key, intent.request)

    async def look_up(self, intent: Intent[str]) -> Verdict:
        assert self.world is not None
        there = await self.provider.ask(
            *self.world.whose(), intent.provider_key, lambda: intent.request in self.provider.effects
        )
        return Verdict.success(f"receipt-{intent.request}") if there else Verdict.not_executed("it is not there")

    async def work(self, world: World, process: Process, delivery: Delivery) -> None:
        key = delivery.entry.key
        if self.scenario.naive:
            call: Any = self._naively(world, process, delivery)
        else:
            call = self.operation(key, key=key)
        await self.settled(world, process, delivery, call)

    async def _naively(self, world: World, process: Process, delivery: Delivery) -> None:
        key = delivery.entry.key
        before = self.scenario.worker == "mark-before"
        seen = await world.memo(process, "check", lambda: key in world.memory)
        if before:
            await world.memo(process, "mark", lambda: world.memory.add(key))
        if not seen:
            await self.provider.call(process, delivery, f"{key}-{delivery.number}", key)
        if not before:
            await world.memo(process, "mark", lambda: world.memory.add(key))

    def finish(self, world: World) -> None:
        for entry in world.broker.unsettled():
            world.fail("wedged", f"message {entry.number} ({entry.key}) is neither acked, parked nor dead-lettered")
        listed = len(drive(world.port.list(Query(state="in_doubt"))).records)
        parked: set[str] = set()
        for key in sorted({entry.key for entry in world.broker.entries}):
            states = {entry.state for entry in world.broker.entries if entry.key == key}
            effects = self.provider.effects.count(key)
            lost = "acked" in states and not effects
            if "parked" in states:
                parked.add(key)
            if lost:
                world.fail("lost", f"{key}: acked, and the provider has never done it")
            if effects > 1:
                world.fail("doubled", f"{key}: the provider has done it {effects} times")
            if effects and states == {"dead"}:
                world.fail("lost", f"{key}: given up as failed, and the provider has done it")
            world.tally[key] = (lost, max(0, effects - 1))
        if listed < len(parked):
            world.fail("lost", f"{len(parked)} are in doubt, and {listed} are on the operator's list")

    def standing(self, world: World, tag: Tag) -> object:
        return self.provider.standing()
