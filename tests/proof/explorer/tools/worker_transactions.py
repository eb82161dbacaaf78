"""`Worker` in mode T, by its public face, on the modelled database.

A transaction each, or those of one fetch in one; the acks ride with the next fetch. Where one of a batch fails all of
it is undone, and redone one by one; what comes again runs alone, and is counted. Nothing lost, nothing doubled.
"""

from __future__ import annotations

from typing import Any

from effectonce.broker import Broker as Handle
from effectonce.core.retry import Retry
from effectonce.inbox import Inbox
from effectonce.message import Message
from effectonce.worker import Worker
from tests.proof.explorer.database import Connection
from tests.proof.explorer.scenario import CRASHES
from tests.proof.explorer.stage import SCOPE, Declined, Tag
from tests.proof.explorer.world import Process, World

from .inbox import InboxStage
from .worker import DRAIN, QUEUE, WorkerStage


class TransactionsStage(InboxStage, WorkerStage):  # type: ignore[misc]  # the inbox's oracle, on the line's queue
    """``worker``: ``each``, or ``batch``. ``options``: of the line."""

    def hired(self, handle: Handle, process: Process) -> Worker:
        worker = Worker(handle, inbox=Inbox(scope=SCOPE), connect=self._connect, prefetch=4, drain=DRAIN)

        @worker.handler(
            QUEUE,
            fingerprint=False,
            concurrency=2,
            batch=self.scenario.worker == "batch",
            retry=Retry(None, first=1e-6, cap=1e-6, jitter=False, max_crashes=CRASHES),
            permanent=(Declined,),
        )
        async def handle_order(conn: Connection, message: Message[Any]) -> None:
            await self.handled_in(conn, message)

        return worker

    async def handled_in(self, conn: Connection, message: Message[Any]) -> None:
        with self.at_work(message) as delivery:
            conn.of = delivery.number
            await self.handler(conn, message.key)

    def open(self, world: World) -> None:
        WorkerStage.open(self, world)
        InboxStage.open(self, world)

    def _connect(self) -> Connection:
        assert self.world is not None
        process = self.world.on
        return Connection(self.world, process, self.database, 0, at_once=process.starting)

    def acked(self, world: World, key: str) -> None:
        world.ledger.acked(key)

    def finish(self, world: World) -> None:
        InboxStage.finish(self, world)
        effects = self.database.effects
        if self.ordered and effects != sorted(effects):
            world.fail("order", f"they are committed as {', '.join(effects)}")
        if world.violation is None:
            self._probe(world)
        for key in effects:
            if effects.count(key) > 1:
                world.fail("doubled", f"{key}: committed, and once more by a later delivery")

    def standing(self, world: World, tag: Tag) -> object:
        order = tuple(self.database.effects) if self.ordered else ()
        return WorkerStage.standing(self, world, tag), InboxStage.standing(self, world, tag), order

    def summary(self, world: World, key: str) -> tuple[object, ...]:
        return (self.database.effects.count(key),)
