"""Recovery: `Intents.recover` and `Saga.resume`. Nobody delivers again; what one process has begun others go on with.

A caller is gone as soon as its record is in the store: dead, paused, or told something and content. From then on only
the recoveries get it to its end, as many at once as there are workers; each of them may die, too, or be paused and wake
up when another has gone on. The end is the record's: done, failed, or in doubt and on the operator's list.
"""

from __future__ import annotations

import asyncio
from typing import Any

from effectonce.core.drive import drive
from effectonce.errors import StoreUnavailable
from effectonce.record import Query, Record, Settlement
from effectonce.testing.explorer.finale import delivered
from effectonce.testing.explorer.scenario import LEASE, RETENTION, SECOND
from effectonce.testing.explorer.stage import Stage, Witness, Word
from effectonce.testing.explorer.steps import spend
from effectonce.testing.explorer.world import Delivery, Process, World

from .intents import IntentsStage
from .saga import SagaStage

RECOVERY = "recovery"
_STATES: dict[str, Any] = {"done": "acked", "failed": "dead", "in_doubt": "parked"}


class Ends(Witness):
    """What was recorded for good: a saga's record is not kept for as long as it is looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.ended: dict[str, str] = {}

    def saw(self, op: Any, reply: Any, now: int) -> None:
        if isinstance(op, Settlement) and op.state in ("done", "failed") and reply:
            self.ended[op.key] = op.state

    def standing(self, tag: Any) -> tuple[object, ...]:
        return tuple(sorted(self.ended.items()))


class RecoveryStage(Stage):
    """What both have in common."""

    scope: str

    def id_of(self, key: str) -> str:
        """The key of the record."""
        return key

    async def recover(self) -> object:
        """One round of it."""
        raise NotImplementedError

    def ledger(self, world: World) -> Ends:
        return Ends()

    def open(self, world: World) -> None:
        super().open(world)
        for _ in range(self.scenario.workers):
            world.broker.send(RECOVERY).not_before = SECOND  # before, there is nothing that nobody holds

    # -- callers

    def died(self, world: World, process: Process) -> None:
        super().died(world, process)
        for entry in world.broker.unsettled():
            if entry.key != RECOVERY and not entry.held and self._written(world, entry.key):
                entry.state, entry.ready = "acked", False

    async def settle(
        self, world: World, process: Process, delivery: Delivery, word: Word, failure: BaseException | None = None
    ) -> None:
        if self._written(world, delivery.entry.key):
            delivery.entry.settle(delivery.number, "acked")
        world.ended(process, delivery, 1.0)

    def _written(self, world: World, key: str) -> bool:
        """Whether the caller may be gone."""
        return self.id_of(key) in world.ledger.ended or self._record(world, key) is not None

    def _record(self, world: World, key: str) -> Record | None:
        return drive(world.port.get(self.scope, self.id_of(key)))  # type: ignore[no-any-return]

    # -- recoveries

    async def work(self, world: World, process: Process, delivery: Delivery) -> None:
        if delivery.entry.key != RECOVERY:
            await super().work(world, process, delivery)
            return
        try:
            came_to = await self.recover()
            world.tell(f"  w{process.slot}: it has recovered {came_to}")
        except (StoreUnavailable, asyncio.CancelledError) as error:
            world.tell(f"  w{process.slot}: the recovery raised {error!r}")
        delivery.inside = False
        due = self._due(world)
        if due is None:
            delivery.entry.settle(delivery.number, "acked")
        world.ended(process, delivery, (due or 0) / SECOND)

    def _due(self, world: World) -> int | None:
        """In how many microseconds there may be something to go on with; None: all has come to its end."""
        left = drive(world.port.list(Query(scope=self.scope, unfinished=True))).records
        if not left and all(entry.key == RECOVERY for entry in world.broker.unsettled()):
            return None
        held = [each.lease_until for each in left if each.state == "claimed" and each.lease_until is not None]
        return max(SECOND, min(held) - world.now()) if left and len(held) == len(left) else SECOND

    def finish(self, world: World) -> None:
        for _ in range(4):  # a claim may have arrived when all was over
            due = self._due(world)
            if due is None or world.violation is not None:
                break
            spend(world, due)
            delivered(world, RECOVERY)
        world.broker.entries = [entry for entry in world.broker.entries if entry.key != RECOVERY]
        for entry in world.broker.entries:
            record = self._record(world, entry.key)
            state = world.ledger.ended.get(self.id_of(entry.key)) or (record.state if record is not None else "")
            if not state and entry.state != "open":
                world.fail("lost", f"{entry.key}: it was written down, and nobody has it any more")
            entry.state = _STATES.get(state, "open")
        super().finish(world)


class IntentsRecoveryStage(RecoveryStage, IntentsStage):
    """``worker``: as there."""

    @property
    def scope(self) -> str:  # type: ignore[override]
        return self.operation.scope

    def id_of(self, key: str) -> str:
        return self.operation.rules.intent_id(key, "", "")

    async def recover(self) -> object:
        return await self.intents.arecover(idle=1e-6)


class SagaRecoveryStage(RecoveryStage, SagaStage):
    """What a step did is remembered for as long as the saga's retention, and for what is on its way then."""

    retention = RETENTION / 2e6
    window = RETENTION // 2 + 2 * LEASE + SECOND

    @property
    def scope(self) -> str:  # type: ignore[override]
        return self.saga.scope

    async def recover(self) -> object:
        return await self.saga.aresume()
