"""The consumers: one that is guarded by `once`, and naive ones that show what the explorer sees without it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from effectonce.guard.block import block
from effectonce.guard.once import once

from .finale import finish
from .oracle import Ledger
from .scenario import LEASE, RETENTION, Scenario
from .stage import SCOPE, Declined, Stage, Transient, Word, word_for
from .world import Delivery, Process, World

Work = Callable[[World, Process, Delivery], Coroutine[Any, Any, None]]


class GuardStage(Stage):
    """The guarded function, decorated once, on a store handle of its own; or a naive one."""

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
            self.options["permanent"] = (Declined,)

        @once(self.store, scope=SCOPE, key="key", **self.options)
        async def charge(key: str) -> str:
            return await self._handler(key)

        self.charge = charge

    def ledger(self, world: World) -> Ledger:
        scenario = self.scenario
        return Ledger(world.fail, seen=scenario.seen, at_most_once=scenario.at_most_once, retention=RETENTION)

    async def work(self, world: World, process: Process, delivery: Delivery) -> None:
        await self._work(world, process, delivery)

    def finish(self, world: World) -> None:
        finish(world)

    def summary(self, world: World, key: str) -> tuple[object, ...]:
        book = world.ledger.book(key)
        return book.state, len(book.grants)

    async def _handler(self, key: str) -> str:
        world = self.world
        assert world is not None
        call = world.enter(key)
        try:
            if takes := self.scenario.options.get("takes"):
                await asyncio.sleep(takes)
            if self.scenario.fine:
                await world.point(call)
            receipt: str = await world.effect(call, "charge")
            await world.point(call)
            return receipt
        finally:
            world.leave(call)

    async def _call(self, key: str) -> tuple[Any, bool]:
        """The result of ``key``, and whether it was replayed."""
        if self.scenario.worker != "block":
            outcome = await self.charge.call(key)
            return outcome.value, outcome.replayed
        async with block(self.store, scope=SCOPE, key=key, **self.options) as b:
            if b.first:
                b.result = await self._handler(key)
        return b.result, not b.first

    async def _guarded(self, world: World, process: Process, delivery: Delivery) -> None:
        word: Word = "ack"
        failure: BaseException | None = None
        try:
            value, replayed = await self._call(delivery.entry.key)
            if replayed:
                world.ledger.replayed(delivery.entry.key, value)
        except GeneratorExit:
            raise
        except BaseException as error:
            failure = error
            word = word_for(error)
        world.returned(process, delivery, failure)
        await self.settle(world, process, delivery, word, failure)

    # -- the control arms: no guard, a set of keys as their memory

    async def _naively(self, world: World, process: Process, delivery: Delivery) -> bool:
        try:
            await self._handler(delivery.entry.key)
        except (Transient, asyncio.CancelledError):
            return False
        return True

    async def _ack_first(self, world: World, process: Process, delivery: Delivery) -> None:
        await world.ask_broker(process, delivery, "ack")
        await self._naively(world, process, delivery)
        world.ended(process, delivery, 1.0)

    async def _check_then_act(self, world: World, process: Process, delivery: Delivery) -> None:
        key = delivery.entry.key
        done = await world.memo(process, "check", lambda: key in world.memory)
        if not done:
            if not await self._naively(world, process, delivery):
                return world.ended(process, delivery, 1.0)
            await world.memo(process, "mark", lambda: world.memory.add(key))
        await self.settle(world, process, delivery, "ack")

    async def _mark_first(self, world: World, process: Process, delivery: Delivery) -> None:
        key = delivery.entry.key

        def mark() -> bool:
            known = key in world.memory
            world.memory.add(key)
            return known

        known = await world.memo(process, "mark", mark)
        if not known and not await self._naively(world, process, delivery):
            return world.ended(process, delivery, 1.0)
        await self.settle(world, process, delivery, "ack")
