"""The guard: a handler under `once` or `block`, and naive handlers, which show that the explorer has teeth."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from effectonce.guard.block import block
from effectonce.guard.once import once

from .oracle import GuardOracle
from .scenario import LEASE, RETENTION, Scenario
from .simulation import Process, SimulatedDelivery, Simulation
from .system import SCOPE, PermanentDecline, SystemUnderTest, Transient, Word, word_for
from .verdict import judge_end

Work = Callable[[Simulation, Process, SimulatedDelivery], Coroutine[Any, Any, None]]


class GuardSystem(SystemUnderTest):
    """A guarded function on a store handle of its own; or a naive one."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self._work: Work = {
            "guard": self._guarded,
            "block": self._guarded,
            "ack-first": self._ack_first,
            "check-then-act": self._check_then_act,
            "mark-first": self._mark_first,
        }.get(scenario.worker, self._guarded)
        own = scenario.options if scenario.part == "guard" else {}
        self.options: dict[str, Any] = {"lease": LEASE / 1e6, "retention": RETENTION / 1e6, **own}
        if "decline" in scenario.faults:
            self.options["permanent"] = (PermanentDecline,)

        @once(self.store, scope=SCOPE, key="key", **self.options)
        async def charge(key: str) -> str:
            return await self._handler(key)

        self.charge = charge

    def oracle(self, simulation: Simulation) -> GuardOracle:
        scenario = self.scenario
        return GuardOracle(simulation.fail, seen=scenario.seen, at_most_once=scenario.at_most_once, retention=RETENTION)

    async def work(self, simulation: Simulation, process: Process, delivery: SimulatedDelivery) -> None:
        await self._work(simulation, process, delivery)

    def finish(self, simulation: Simulation) -> None:
        judge_end(simulation)

    def summary(self, simulation: Simulation, key: str) -> tuple[object, ...]:
        history = simulation.oracle.history(key)
        return history.state, len(history.grants)

    async def _handler(self, key: str) -> str:
        simulation = self.simulation
        assert simulation is not None
        call = simulation.start_handler(key)
        try:
            if takes := self.scenario.options.get("takes"):
                await asyncio.sleep(takes)
            if self.scenario.fine:
                await simulation.pause_handler(call)
            receipt: str = await simulation.effect(call, "charge")
            await simulation.pause_handler(call)
            return receipt
        finally:
            simulation.end_handler(call)

    async def _call(self, key: str) -> tuple[Any, bool]:
        """Return the result of ``key``, and whether it was replayed."""
        if self.scenario.worker != "block":
            outcome = await self.charge.call(key)
            return outcome.value, outcome.replayed
        async with block(self.store, scope=SCOPE, key=key, **self.options) as guarded:
            if guarded.first:
                guarded.result = await self._handler(key)
        return guarded.result, not guarded.first

    async def _guarded(self, simulation: Simulation, process: Process, delivery: SimulatedDelivery) -> None:
        word: Word = "ack"
        failure: BaseException | None = None
        try:
            value, replayed = await self._call(delivery.entry.key)
            if replayed:
                simulation.oracle.observe_replay(delivery.entry.key, value)
        except GeneratorExit:
            raise
        except BaseException as error:
            failure = error
            word = word_for(error)
        simulation.end_call(process, delivery, failure)
        await self.settle(simulation, process, delivery, word, failure)

    # -- the control arms: no guard, and a set of marked keys

    async def _run_naively(self, simulation: Simulation, process: Process, delivery: SimulatedDelivery) -> bool:
        try:
            await self._handler(delivery.entry.key)
        except (Transient, asyncio.CancelledError):
            return False
        return True

    async def _ack_first(self, simulation: Simulation, process: Process, delivery: SimulatedDelivery) -> None:
        await simulation.ask_broker(process, delivery, "ack")
        await self._run_naively(simulation, process, delivery)
        simulation.end_delivery(process, delivery, 1.0)

    async def _check_then_act(self, simulation: Simulation, process: Process, delivery: SimulatedDelivery) -> None:
        key = delivery.entry.key
        done = await simulation.ask_memory(process, "check", lambda: key in simulation.memory)
        if not done:
            if not await self._run_naively(simulation, process, delivery):
                return simulation.end_delivery(process, delivery, 1.0)
            await simulation.ask_memory(process, "mark", lambda: simulation.memory.add(key))
        await self.settle(simulation, process, delivery, "ack")

    async def _mark_first(self, simulation: Simulation, process: Process, delivery: SimulatedDelivery) -> None:
        key = delivery.entry.key

        def mark() -> bool:
            known = key in simulation.memory
            simulation.memory.add(key)
            return known

        known = await simulation.ask_memory(process, "mark", mark)
        if not known and not await self._run_naively(simulation, process, delivery):
            return simulation.end_delivery(process, delivery, 1.0)
        await self.settle(simulation, process, delivery, "ack")
