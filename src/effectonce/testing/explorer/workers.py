"""The consumers: one that is guarded by `once`, and naive ones that show what the explorer sees without it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Literal

from effectonce.blocks import block
from effectonce.errors import InDoubt, PayloadMismatch, PermanentFailure, ResultNotStored, Retryable
from effectonce.guard import once
from effectonce.store import Store, open_backend

from .scenario import LEASE, RETENTION, Scenario

if TYPE_CHECKING:
    from .world import Delivery, Process, World

Word = Literal["ack", "again", "park", "dead"]
Work = Callable[["World", "Process", "Delivery"], Coroutine[Any, Any, None]]

SCOPE = "explored"


class Transient(Exception):
    """What the handler raises where a schedule says so; the next delivery may succeed."""


class Declined(Exception):
    """What the handler raises for good."""


def word_for(error: BaseException) -> Word:
    """What a worker tells the broker when the guarded call raised: DESIGN section 3."""
    if isinstance(error, ResultNotStored):
        return "ack"
    if isinstance(error, InDoubt):
        return "park"
    if isinstance(error, PermanentFailure | PayloadMismatch | Declined):
        return "dead"
    return "again"


class Stage:
    """What all schedules of one scenario share: the guarded function, decorated once, on a store handle of its own.

    Before a process gets a turn its engine is put behind the handle, so that each has its own connections,
    heartbeat and waiters, as processes do.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.world: World | None = None
        self.store = Store(_nowhere, sweep_every=None)
        self.backend: Any = type(open_backend("memory://"))
        self.work: Work = {
            "guard": self._guarded,
            "block": self._guarded,
            "ack-first": self._ack_first,
            "check-then-act": self._check_then_act,
            "mark-first": self._mark_first,
        }[scenario.worker]
        self.options: dict[str, Any] = {"lease": LEASE / 1e6, "retention": RETENTION / 1e6, **scenario.options}
        if "decline" in scenario.faults:
            self.options["permanent"] = (Declined,)

        @once(self.store, scope=SCOPE, key="key", **self.options)
        async def charge(key: str) -> str:
            return await self._handler(key)

        self.charge = charge

    async def _handler(self, key: str) -> str:
        world = self.world
        assert world is not None
        call = world.enter(key)
        try:
            if self.scenario.fine:
                await world.point(call)
            receipt: str = await world.effect(call, "charge")
            await world.point(call)
            return receipt
        finally:
            world.leave(call)

    async def _call(self, key: str) -> tuple[Any, bool]:
        """The result of ``key``, and whether it was replayed."""
        if self.scenario.worker == "guard":
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

    async def settle(
        self, world: World, process: Process, delivery: Delivery, word: Word, failure: BaseException | None = None
    ) -> None:
        """Tell the broker, and end."""
        if word != "again":
            await world.ask_broker(process, delivery, word)
        wait = failure.retry_after if isinstance(failure, Retryable) else 1.0
        world.ended(process, delivery, 0 if isinstance(failure, asyncio.CancelledError) else wait)

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


def _nowhere() -> Any:
    raise AssertionError("a process was given a turn without an engine")
