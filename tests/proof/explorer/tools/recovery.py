"""Recovery: `Intents.recover` and `Saga.resume`. Messages are not delivered again; other processes resume the work.

A caller is gone as soon as its record is in the store: dead, paused, or with an answer. From then on only recoveries
bring the record to its end, as many at once as there are workers. Each of them may die, too, or be paused and wake up
when another has resumed the work. The end is the record's: done, failed, or in doubt and on the operator's list.
"""

from __future__ import annotations

import asyncio
from typing import Any

from effectonce.core.run_sync import run_sync
from effectonce.errors import StoreUnavailable
from effectonce.record import Query, Record, Settlement
from tests.proof.explorer.actions import pass_time
from tests.proof.explorer.scenario import LEASE, RETENTION, SECOND
from tests.proof.explorer.simulation import Process, SimulatedDelivery, Simulation
from tests.proof.explorer.system import Oracle, SystemUnderTest, Word
from tests.proof.explorer.verdict import deliver_probe

from .intents import IntentsSystem
from .saga import SagaSystem

RECOVERY = "recovery"
_STATES: dict[str, Any] = {"done": "acked", "failed": "dead", "in_doubt": "parked"}


class RecoveryOracle(Oracle):
    """Remembers final states: a saga's record may expire before the schedule ends."""

    def __init__(self) -> None:
        super().__init__()
        self.final_states: dict[str, str] = {}

    def observe(self, op: Any, reply: Any, now: int) -> None:
        if isinstance(op, Settlement) and op.state in ("done", "failed") and reply:
            self.final_states[op.key] = op.state

    def state_key(self, tag: Any) -> tuple[object, ...]:
        return tuple(sorted(self.final_states.items()))


class RecoverySystem(SystemUnderTest):
    """What the recovery of intents and that of sagas have in common."""

    scope: str

    def id_of(self, key: str) -> str:
        """Return the key of the record."""
        return key

    async def recover(self) -> object:
        """Run one round of recovery."""
        raise NotImplementedError

    def oracle(self, simulation: Simulation) -> RecoveryOracle:
        return RecoveryOracle()

    def open(self, simulation: Simulation) -> None:
        super().open(simulation)
        for _ in range(self.scenario.workers):
            simulation.broker.send(RECOVERY).not_before = SECOND  # before, every record has a live lease

    # -- callers

    def process_died(self, simulation: Simulation, process: Process) -> None:
        super().process_died(simulation, process)
        for entry in simulation.broker.unsettled():
            if entry.key != RECOVERY and not entry.held and self._written(simulation, entry.key):
                entry.state, entry.ready = "acked", False

    async def settle(
        self,
        simulation: Simulation,
        process: Process,
        delivery: SimulatedDelivery,
        word: Word,
        failure: BaseException | None = None,
    ) -> None:
        if self._written(simulation, delivery.entry.key):
            delivery.entry.settle(delivery.number, "acked")
        simulation.end_delivery(process, delivery, 1.0)

    def _written(self, simulation: Simulation, key: str) -> bool:
        """Whether the record is in the store, so that the caller may be gone."""
        return self.id_of(key) in simulation.oracle.final_states or self._record(simulation, key) is not None

    def _record(self, simulation: Simulation, key: str) -> Record | None:
        return run_sync(simulation.port.get(self.scope, self.id_of(key)))  # type: ignore[no-any-return]

    # -- recoveries

    async def work(self, simulation: Simulation, process: Process, delivery: SimulatedDelivery) -> None:
        if delivery.entry.key != RECOVERY:
            await super().work(simulation, process, delivery)
            return
        try:
            outcome = await self.recover()
            simulation.narrate(f"  w{process.slot}: it has recovered {outcome}")
        except (StoreUnavailable, asyncio.CancelledError) as error:
            simulation.narrate(f"  w{process.slot}: the recovery raised {error!r}")
        delivery.inside = False
        due = self._due(simulation)
        if due is None:
            delivery.entry.settle(delivery.number, "acked")
        simulation.end_delivery(process, delivery, (due or 0) / SECOND)

    def _due(self, simulation: Simulation) -> int | None:
        """Return in how many microseconds there may be work to resume; None: all of it has ended."""
        unfinished = run_sync(simulation.port.list(Query(scope=self.scope, unfinished=True))).records
        if not unfinished and all(entry.key == RECOVERY for entry in simulation.broker.unsettled()):
            return None
        leases = [r.lease_until for r in unfinished if r.state == "claimed" and r.lease_until is not None]
        all_held = unfinished and len(leases) == len(unfinished)
        return max(SECOND, min(leases) - simulation.now()) if all_held else SECOND

    def finish(self, simulation: Simulation) -> None:
        for _ in range(4):  # a delayed claim may have arrived at the end
            due = self._due(simulation)
            if due is None or simulation.violation is not None:
                break
            pass_time(simulation, due)
            deliver_probe(simulation, RECOVERY)
        simulation.broker.entries = [entry for entry in simulation.broker.entries if entry.key != RECOVERY]
        for entry in simulation.broker.entries:
            record = self._record(simulation, entry.key)
            state = simulation.oracle.final_states.get(self.id_of(entry.key)) or (
                record.state if record is not None else ""
            )
            if not state and entry.state != "open":
                simulation.fail("lost", f"{entry.key}: it was recorded, and its record is gone")
            entry.state = _STATES.get(state, "open")
        super().finish(simulation)


class IntentsRecoverySystem(RecoverySystem, IntentsSystem):
    """``worker``: as in `IntentsSystem`."""

    @property
    def scope(self) -> str:  # type: ignore[override]
        return self.operation.scope

    def id_of(self, key: str) -> str:
        return self.operation.rules.intent_id(key, "", "")

    async def recover(self) -> object:
        return await self.intents.arecover(idle=1e-6)


class SagaRecoverySystem(RecoverySystem, SagaSystem):
    """Providers remember a step for the saga's retention, and for as long as a request may still be on its way."""

    retention = RETENTION / 2e6
    window = RETENTION // 2 + 2 * LEASE + SECOND

    @property
    def scope(self) -> str:  # type: ignore[override]
        return self.saga.scope

    async def recover(self) -> object:
        return await self.saga.aresume()
