"""`Worker` in mode T, by its public methods, on the modelled database.

Each message has a transaction of its own, or those of one fetch share one; the acks ride with the next fetch. Where one
message of a batch fails, all of it is rolled back, and redone one by one; a redelivered message runs alone, and is
counted. Nothing is lost, nothing doubled.
"""

from __future__ import annotations

from typing import Any

from effectonce.broker import Broker
from effectonce.core.retry import Retry
from effectonce.inbox.inbox import Inbox
from effectonce.message import Message
from effectonce.worker.worker import Worker
from tests.proof.explorer.database import SimulatedConnection
from tests.proof.explorer.scenario import MAX_CRASHES
from tests.proof.explorer.simulation import Process, Simulation
from tests.proof.explorer.system import SCOPE, PermanentDecline, Tag

from .inbox import InboxSystem
from .worker import DRAIN_S, QUEUE, WorkerSystem


class TransactionalWorkerSystem(InboxSystem, WorkerSystem):  # type: ignore[misc]  # the inbox's oracle, the worker's queue
    """``worker``: ``each``, or ``batch``. ``options``: of the worker."""

    def make_worker(self, handle: Broker, process: Process) -> Worker:
        worker = Worker(handle, inbox=Inbox(scope=SCOPE), connect=self._connect, prefetch=4, drain=DRAIN_S)

        @worker.handler(
            QUEUE,
            fingerprint=False,
            concurrency=2,
            batch=self.scenario.worker == "batch",
            retry=Retry(None, first=1e-6, cap=1e-6, jitter=False, max_crashes=MAX_CRASHES),
            permanent=(PermanentDecline,),
        )
        async def handle_order(conn: SimulatedConnection, message: Message[Any]) -> None:
            await self.run_handler_in(conn, message)

        return worker

    async def run_handler_in(self, conn: SimulatedConnection, message: Message[Any]) -> None:
        with self.handling(message) as delivery:
            conn.of = delivery.number
            await self.handler(conn, message.key)

    def open(self, simulation: Simulation) -> None:
        WorkerSystem.open(self, simulation)
        InboxSystem.open(self, simulation)

    def _connect(self) -> SimulatedConnection:
        assert self.simulation is not None
        process = self.simulation.running_process
        return SimulatedConnection(self.simulation, process, self.database, 0, at_once=process.starting)

    def observe_ack(self, simulation: Simulation, key: str) -> None:
        simulation.oracle.observe_ack(key)

    def finish(self, simulation: Simulation) -> None:
        InboxSystem.finish(self, simulation)
        effects = self.database.effects
        if self.ordered and effects != sorted(effects):
            simulation.fail("order", f"they are committed as {', '.join(effects)}")
        if simulation.violation is None:
            self._probe(simulation)
        for key in effects:
            if effects.count(key) > 1:
                simulation.fail("doubled", f"{key}: committed, and once more by a later delivery")

    def state_key(self, simulation: Simulation, tag: Tag) -> object:
        order = tuple(self.database.effects) if self.ordered else ()
        return WorkerSystem.state_key(self, simulation, tag), InboxSystem.state_key(self, simulation, tag), order

    def summary(self, simulation: Simulation, key: str) -> tuple[object, ...]:
        return (self.database.effects.count(key),)
