"""Modes K and I with the completion in the caller's own transaction: `Operation.send` and `Sent.complete`.

One commit has the caller's row, the message in the outbox and the end of the intent. So they agree with each other and
with the provider, or none of them is there: then the request is sent again with the same key, or is on the operator's
list. A recovery that comes between may learn the provider's answer, and leaves the rest to the next delivery.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from effectonce.core.run_sync import run_sync
from effectonce.errors import StoreUnavailable
from effectonce.message import Message
from effectonce.outbox.outbox import Outbox
from effectonce.record import Batchable, Settlement
from effectonce.sessions import session_on
from tests.proof.explorer.database import SimulatedConnection, SimulatedDatabase
from tests.proof.explorer.scenario import LEASE, Scenario
from tests.proof.explorer.simulation import Process, SimulatedDelivery, Simulation
from tests.proof.explorer.system import Tag
from tests.proof.explorer.transport import Transport

from .intents import IntentsSystem

RECOVERY = "recovery"


class _LockedTransport(Transport):
    """Carries an operation on a record that an open transaction has completed: it waits for the end of that."""

    def __init__(self, database: SimulatedDatabase, ops: Sequence[Batchable]) -> None:
        self._database = database
        self._ops = ops

    def is_blocked(self) -> bool:
        return any(self._database.is_completing(op.key) for op in self._ops)


class JoinedIntentsSystem(IntentsSystem):
    """``worker``: as in `IntentsSystem`. ``options``: with ``recover``, recoveries run beside the deliveries."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self.outbox = Outbox(to="orders")

    def open(self, simulation: Simulation) -> None:
        super().open(simulation)
        self.database = SimulatedDatabase()
        self.sent: list[str] = []
        self.database.on_send = lambda seq, row: self.sent.append(row.message_id)
        self.database.on_settle = lambda op: self._complete_record(simulation, op)
        if self.scenario.options.get("recover"):
            simulation.broker.send(RECOVERY)

    def _complete_record(self, simulation: Simulation, op: Settlement) -> None:
        if simulation.apply([op]) != [True]:
            simulation.fail("refused", f"{op.key}: completed by a transaction that held its record, and refused")

    def transport(self, ops: Sequence[Batchable]) -> Transport:
        return _LockedTransport(self.database, ops)

    def process_died(self, simulation: Simulation, process: Process) -> None:
        self.database.drop_connections_of(process)

    async def work(self, simulation: Simulation, process: Process, delivery: SimulatedDelivery) -> None:
        if delivery.entry.key != RECOVERY:
            await self.settle_after(simulation, process, delivery, self.pay(simulation, delivery.entry.key))
            return
        try:
            simulation.narrate(f"  w{process.slot}: it has recovered {await self.intents.arecover(idle=1e-6)}")
        except (StoreUnavailable, asyncio.CancelledError) as error:
            simulation.narrate(f"  w{process.slot}: the recovery raised {error!r}")
        delivery.inside = False
        if all(entry.key == RECOVERY for entry in simulation.broker.unsettled()):
            delivery.entry.settle(delivery.number, "acked")
        simulation.end_delivery(process, delivery, LEASE / 1e6)

    async def pay(self, simulation: Simulation, key: str) -> None:
        """Send, and complete in a transaction, as the user's function does."""
        async with self.operation.send(key, key=key) as sent:
            process, delivery = simulation.current_delivery()
            conn: Any = SimulatedConnection(simulation, process, self.database, delivery.number)
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

    def finish(self, simulation: Simulation) -> None:
        simulation.broker.entries = [entry for entry in simulation.broker.entries if entry.key != RECOVERY]
        super().finish(simulation)
        for key in sorted({entry.key for entry in simulation.broker.entries}):
            rows, messages = self.database.effects.count(key), self.sent.count(key)
            charged = key in self.provider.effects
            record = run_sync(simulation.port.get(self.operation.scope, self.operation.rules.intent_id(key, "", "")))
            done = record is not None and record.state == "done"
            if rows > 1 or messages > 1:
                simulation.fail("doubled", f"{key}: {rows} rows and {messages} messages are committed")
            if rows and not charged:
                simulation.fail("phantom", f"{key}: its row is committed, and the provider never executed it")
            if not rows == messages == done:
                state = record and record.state
                simulation.fail("phantom", f"{key}: {rows} rows, {messages} messages, and its intent is {state}")
            if not rows and any(entry.state == "acked" for entry in simulation.broker.entries if entry.key == key):
                simulation.fail("lost", f"{key}: acked, and its row is not committed")

    def state_key(self, simulation: Simulation, tag: Tag) -> object:
        return super().state_key(simulation, tag), self.database.state_key(), tuple(sorted(self.sent))
