"""Mode T: `Inbox`, in a transaction of its own (`handler`) or in the caller's (`first`).

The effect is a row in that transaction, so it happens when the commit does. Nothing is lost and nothing doubled,
whatever happens to the reply to the COMMIT, to the ack, and to the process.
"""

from __future__ import annotations

from typing import Any

from effectonce.inbox.inbox import Inbox
from effectonce.sessions import session_on
from tests.proof.explorer.database import SimulatedConnection, SimulatedDatabase
from tests.proof.explorer.scenario import Scenario
from tests.proof.explorer.simulation import Process, SimulatedDelivery, Simulation
from tests.proof.explorer.system import SCOPE, Oracle, SystemUnderTest, Tag


class InboxOracle(Oracle):
    """Compares with the database whenever a message is settled."""

    def __init__(self, simulation: Simulation, system: InboxSystem) -> None:
        super().__init__()
        self._simulation = simulation
        self._system = system

    def observe_ack(self, key: str) -> None:
        if key not in self._system.database.effects:
            self._simulation.fail("lost", f"{key}: acked, and its effect is not committed")

    def observe_dead_letter(self, key: str) -> None:
        max_attempts = self._system.scenario.options.get("max_attempts")
        if max_attempts is None or self._system.database.starts.get(key, 0) <= max_attempts:
            self._simulation.fail("lost", f"{key}: dead-lettered, and it has not used its attempts")


class InboxSystem(SystemUnderTest):
    """``worker``: ``handler``, ``first``, or one of the naive arms ``row-first`` and ``effect-first``."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self.inbox = Inbox(scope=SCOPE)
        self.database = SimulatedDatabase()

        @self.inbox.handler(
            connect=self._connect,
            allow_unsafe=True,
            backoff=1e-6,
            max_backoff=1e-6,
            max_attempts=scenario.options.get("max_attempts"),
        )
        async def handle(conn: Any, key: str) -> None:
            await self.handler(conn, key)

        self.handle = handle

    def oracle(self, simulation: Simulation) -> Oracle:
        return InboxOracle(simulation, self)

    def open(self, simulation: Simulation) -> None:
        self.database = SimulatedDatabase()

    def process_died(self, simulation: Simulation, process: Process) -> None:
        self.database.drop_connections_of(process)

    def _connect(self) -> SimulatedConnection:
        simulation = self.simulation
        assert simulation is not None
        process, delivery = simulation.current_delivery()
        return SimulatedConnection(simulation, process, self.database, delivery.number)

    async def handler(self, conn: SimulatedConnection, key: str) -> None:
        """Write the effect, as the user's handler does."""
        await conn.effect(key)
        await conn.simulation.ask(conn.process, "point", ("handler",), lambda: None, of=conn.of)

    async def work(self, simulation: Simulation, process: Process, delivery: SimulatedDelivery) -> None:
        key = delivery.entry.key
        calls: dict[str, Any] = {"handler": self.handle, "first": self._first}
        call = calls.get(self.scenario.worker, self._run_naively)
        await self.settle_after(simulation, process, delivery, call(key))

    async def _first(self, key: str) -> None:
        """Use `Inbox.first` in a transaction of the caller's own."""
        conn = self._connect()
        session = session_on(conn)
        try:
            await session.begin()
            if await self.inbox.first(conn, key):  # type: ignore[call-overload]
                await self.handler(conn, key)
            await session.commit()
        finally:
            await session.close()

    async def _run_naively(self, key: str) -> None:
        """Write the row and the effect in two transactions: a control arm."""
        conn = self._connect()
        session = session_on(conn)
        row_first = self.scenario.worker == "row-first"
        try:
            await session.begin()
            seen = key in self.database.inbox
            if row_first:
                seen = not await self.inbox.first(conn, key)  # type: ignore[call-overload]
                await session.commit()
                await session.begin()
            if not seen:
                await self.handler(conn, key)
                await session.commit()
                if not row_first:
                    await session.begin()
                    await self.inbox.first(conn, key)  # type: ignore[call-overload]
                    await session.commit()
        finally:
            await session.close()

    def finish(self, simulation: Simulation) -> None:
        for entry in simulation.broker.unsettled():
            simulation.fail(
                "wedged", f"message {entry.number} ({entry.key}) is neither acked, parked nor dead-lettered"
            )
        for key in sorted({entry.key for entry in simulation.broker.entries}):
            effects = self.database.effects.count(key)
            dead = all(entry.state == "dead" for entry in simulation.broker.entries if entry.key == key)
            if not effects and not dead:
                simulation.fail("lost", f"{key}: acked, and its effect is not in the database")
            if effects > 1:
                simulation.fail("doubled", f"{key}: its effect is in the database {effects} times")
            if (key in self.database.inbox) != bool(effects) and not self.scenario.naive:
                simulation.fail(
                    "phantom", f"{key}: its row says {key in self.database.inbox}, its effects are {effects}"
                )
            simulation.tally[key] = (not effects and not dead, max(0, effects - 1))

    def state_key(self, simulation: Simulation, tag: Tag) -> object:
        return self.database.state_key()
