"""Modes K and I, whose completion is in the caller's own transaction: `Operation.send` and `Sent.complete`.

One commit has the caller's row, the message in the outbox and the end of the intent. So they agree with each other and
with the provider, or nothing of it is there: then it is sent again with the same key, or is on the operator's list. A
recovery that comes between may find out what it gave, and leaves the rest to the next delivery.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from effectonce.core.drive import drive
from effectonce.errors import StoreUnavailable
from effectonce.message import Message
from effectonce.outbox.outbox import Outbox
from effectonce.record import Batchable, Settlement
from effectonce.sessions import session_on
from effectonce.testing.explorer.database import Connection, Database
from effectonce.testing.explorer.scenario import LEASE, Scenario
from effectonce.testing.explorer.stage import Tag
from effectonce.testing.explorer.wire import Ties
from effectonce.testing.explorer.world import Delivery, Process, World

from .intents import IntentsStage

RECOVERY = "recovery"


class _Locked(Ties):
    """An operation on a record that a transaction has completed waits for the end of that."""

    def __init__(self, database: Database, ops: Sequence[Batchable]) -> None:
        self._database = database
        self._ops = ops

    def blocked(self) -> bool:
        return any(self._database.completing(op.key) for op in self._ops)


class JoinedStage(IntentsStage):
    """``worker``: as there. ``options``: with ``recover``, recoveries beside the deliveries, one after the other."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self.outbox = Outbox(to="orders")

    def open(self, world: World) -> None:
        super().open(world)
        self.database = Database()
        self.sent: list[str] = []
        self.database.on_send = lambda seq, row: self.sent.append(row.message_id)
        self.database.on_settle = lambda op: self._settled(world, op)
        if self.scenario.options.get("recover"):
            world.broker.send(RECOVERY)

    def _settled(self, world: World, op: Settlement) -> None:
        if world.apply([op]) != [True]:
            world.fail("refused", f"{op.key}: completed by a transaction that held its record, and refused")

    def ties(self, ops: Sequence[Batchable]) -> Ties:
        return _Locked(self.database, ops)

    def died(self, world: World, process: Process) -> None:
        self.database.left_by(process)

    async def work(self, world: World, process: Process, delivery: Delivery) -> None:
        if delivery.entry.key != RECOVERY:
            await self.settled(world, process, delivery, self.pay(world, delivery.entry.key))
            return
        try:
            world.tell(f"  w{process.slot}: it has recovered {await self.intents.arecover(idle=1e-6)}")
        except (StoreUnavailable, asyncio.CancelledError) as error:
            world.tell(f"  w{process.slot}: the recovery raised {error!r}")
        delivery.inside = False
        if all(entry.key == RECOVERY for entry in world.broker.unsettled()):
            delivery.entry.settle(delivery.number, "acked")
        world.ended(process, delivery, LEASE / 1e6)

    async def pay(self, world: World, key: str) -> None:
        """What the user has written."""
        async with self.operation.send(key, key=key) as sent:
            process, delivery = world.whose()
            conn: Any = Connection(world, process, self.database, delivery.number)
            session = session_on(conn)
            try:
                await session.begin()
                if not sent.replayed:
                    await conn.effect(key)
                    await self.outbox.send(conn, Message(data=key, type="paid", id=key))
                await sent.complete(conn)
                await session.commit()
            finally:
                await session.close()

    def finish(self, world: World) -> None:
        world.broker.entries = [entry for entry in world.broker.entries if entry.key != RECOVERY]
        super().finish(world)
        for key in sorted({entry.key for entry in world.broker.entries}):
            rows, messages = self.database.effects.count(key), self.sent.count(key)
            charged = key in self.provider.effects
            record = drive(world.port.get(self.operation.scope, self.operation.rules.intent_id(key, "", "")))
            done = record is not None and record.state == "done"
            if rows > 1 or messages > 1:
                world.fail("doubled", f"{key}: {rows} rows and {messages} messages are committed")
            if rows and not charged:
                world.fail("phantom", f"{key}: its row is committed, and the provider has never done it")
            if not rows == messages == done:
                state = record and record.state
                world.fail("phantom", f"{key}: {rows} rows, {messages} messages, and its intent is {state}")
            if not rows and any(entry.state == "acked" for entry in world.broker.entries if entry.key == key):
                world.fail("lost", f"{key}: acked, and its row is not committed")

    def standing(self, world: World, tag: Tag) -> object:
        return super().standing(world, tag), self.database.standing(), tuple(sorted(self.sent))
