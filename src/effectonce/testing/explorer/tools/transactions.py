"""The worker's line in mode T: `worker.transactions` and `worker.plans` as they are, on the modelled database.

A transaction each, or those of one fetch in one; the acks ride with the next fetch. Where one of a batch fails all of
it is undone, and redone one by one; what comes again runs alone, and is counted. Nothing lost, nothing doubled.
"""

from __future__ import annotations

from typing import Any

from effectonce.broker import Broker as Handle
from effectonce.inbox.inbox import Inbox
from effectonce.message import Message
from effectonce.testing.explorer.database import Connection
from effectonce.testing.explorer.scenario import CRASHES
from effectonce.testing.explorer.stage import SCOPE, Declined, Steady, Tag
from effectonce.testing.explorer.world import Process, World
from effectonce.worker.background_tasks import Fail
from effectonce.worker.queue_consumer import Discipline, Line
from effectonce.worker.route_inbox import RouteInbox
from effectonce.worker.transaction_executor import Transactions, Turns
from effectonce.worker.transaction_runner import Plans
from effectonce.worker.worker import Worker

from .inbox import InboxStage
from .line import QUEUE, Even, LineStage


class TransactionsStage(InboxStage, LineStage):  # type: ignore[misc]  # the inbox's oracle, on the line's queue
    """``worker``: ``each``, or ``batch``. ``options``: of the line."""

    def hired(self, handle: Handle) -> Worker:
        worker = Worker(handle, inbox=Inbox(scope=SCOPE), connect=self._connect)

        @worker.handler(
            QUEUE,
            fingerprint=False,
            concurrency=2,
            batch=self.scenario.worker == "batch",
            retry=Steady(None, first=1e-6, cap=1e-6, max_crashes=CRASHES),
            permanent=(Declined,),
        )
        async def handle_order(conn: Connection, message: Message[Any]) -> None:
            with self.at_work(message) as delivery:
                conn.of = delivery.number
                await self.handler(conn, message.key)

        return worker

    def discipline(self, world: World, process: Process, line: Line, fail: Fail) -> Discipline:
        (route,) = self.worker.routes
        inbox = self.worker.inbox
        assert inbox is not None
        plans = Plans(route, RouteInbox(inbox, route.policy.scope, route.policy.retention), self._connect)
        for plan in (plans.plain, *plans.counted.values()):
            plan.needs_check = False
            plan.options.backoff = plan.options.max_backoff = 1e-6
        transactions = Transactions(line, [plans], Turns(), fail)
        transactions._backoff = Even(QUEUE)
        self.plans[process] = plans
        return transactions

    def open(self, world: World) -> None:
        LineStage.open(self, world)
        InboxStage.open(self, world)
        self.plans: dict[Process, Plans] = {}

    def _connect(self) -> Connection:
        assert self.world is not None
        return Connection(self.world, self.world.on, self.database, 0)

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
        owed = tuple(tuple(sorted(self.plans[process]._owed)) for process in world.processes)
        order = tuple(self.database.effects) if self.ordered else ()
        return LineStage.standing(self, world, tag), InboxStage.standing(self, world, tag), owed, order

    def summary(self, world: World, key: str) -> tuple[object, ...]:
        return (self.database.effects.count(key),)
