"""Messages through a worker while a cluster fails over, and the count of what was lost and what happened twice.

The cluster is the worker's database (mode T), its store (mode L) or its broker. Everything else is a SQLite file beside
it, which no fault reaches. At the end every message is sent once more: a record that the cluster has lost since then
lets its effect happen again.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import effectonce as eo
from tests.proof.soak import Tally

SCOPE = "clusters"
QUEUE = "clusters"
LEASE_S = 1.0
BATCH = 40
MAX_BACKLOG = 800
SETTLE_TIMEOUT_S = 180.0
RETRY = eo.Retry(None, first="50ms", cap="500ms", max_crashes=1000)

Nemesis = tuple[str, Callable[[], object]]


@dataclass
class ClusterCase:
    """What the worker uses of a cluster, and what is done to it.

    ``connect`` opens a connection of the caller's (mode T); ``count_rows`` returns the keys of all effects there.
    """

    broker: str
    nemeses: Sequence[Nemesis]
    store: str = ""
    connect: Callable[[], Any] | None = None
    count_rows: Callable[[], list[str]] | None = None
    keeps_records: bool = True  # else it is the broker


class ClusterRun:
    """One run of a case: the publisher, the worker and the faults, all in this process, which nothing kills."""

    def __init__(self, case: ClusterCase, messages: int, seed: str) -> None:
        self._case = case
        self._target = messages
        self._random = random.Random(seed)
        self._effects: list[str] = []
        self._completed = 0
        self._made: Counter[str] = Counter()
        self._published: list[eo.Message[int]] = []
        self._idle_connections: list[Any] = []
        self.tally = Tally(0)

    def run(self) -> Tally:
        began = time.monotonic()
        asyncio.run(self._run())
        tally, effects = self.tally, self._list_effects()
        tally.messages, tally.effects = len(self._published), len(effects)
        tally.faults = self._made.total()
        tally.errors |= {f"nemesis {name}": count for name, count in self._made.items()}
        tally.doubled = len(effects) - len(set(effects))
        tally.seconds = time.monotonic() - began
        return tally

    def _list_effects(self) -> list[str]:
        return self._effects if self._case.count_rows is None else self._case.count_rows()

    async def _run(self) -> None:
        broker = eo.connect_broker(self._case.broker)
        store = eo.connect(self._case.store, sweep_every=None) if self._case.store else None
        if store is not None:
            await asyncio.to_thread(store.migrate)
            store.add_hook(self._note_event)
        worker = self._make_worker(broker, store)
        await _until_available(lambda: broker.backend.declare(QUEUE, group="worker"))
        serving = asyncio.create_task(worker.serve())
        faults = asyncio.create_task(asyncio.to_thread(self._make_faults))
        try:
            await self._publish(broker, worker, faults)
            await faults
            await self._wait(worker, len(self._published))
            effects = set(await asyncio.to_thread(self._list_effects))
            self.tally.lost = sum(message.key not in effects for message in self._published)
            if store is not None:
                await asyncio.to_thread(self._count_unrecorded, store)
            if self._case.keeps_records:
                for start in range(0, len(self._published), BATCH):
                    await self._send(broker, self._published[start : start + BATCH])
                await self._wait(worker, 2 * len(self._published))
        finally:
            worker.stop()
            await serving
            await broker.aclose()
            if store is not None:
                await store.aclose()
            for connection in self._idle_connections:
                connection.close()

    def _make_worker(self, broker: eo.Broker, store: eo.Store | None) -> eo.Worker:
        if store is None:
            worker = eo.Worker(broker, inbox=eo.Inbox(scope=SCOPE), connect=self._connection, name="worker")

            @worker.handler(QUEUE, retry=RETRY, concurrency=4)
            def insert(connection: Any, message: eo.Message[int]) -> None:
                connection.cursor().execute(f"INSERT INTO effects (scope, name) VALUES ('{SCOPE}', '{message.key}')")

            return worker
        worker = eo.Worker(broker, store=store, name="worker", drain="5s")

        @worker.handler(QUEUE, scope=SCOPE, retry=RETRY, concurrency=16, lease=LEASE_S)
        async def effect(message: eo.Message[int]) -> None:
            await asyncio.sleep(0.001)
            self._effects.append(message.key)

        return worker

    @contextmanager
    def _connection(self) -> Iterator[Any]:
        """Yield a connection, as a pool would; one that had an error is not used again."""
        assert self._case.connect is not None
        connection = self._idle_connections.pop() if self._idle_connections else self._case.connect()
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        self._idle_connections.append(connection)

    def _note_event(self, event: eo.Event) -> None:
        self._completed += event.kind == "completed"

    # -- the publisher

    async def _publish(self, broker: eo.Broker, worker: eo.Worker, faults: asyncio.Task[None]) -> None:
        """Publish until there were enough messages and every fault was made. Each is sent until it is confirmed."""
        while len(self._published) < self._target or not faults.done():
            if len(self._published) >= self._target:
                await asyncio.sleep(0.2)  # enough of them; a few more while faults are made
            messages = [eo.Message(data=len(self._published) + number) for number in range(BATCH)]
            await self._send(broker, messages)
            self._published += messages
            while len(self._published) - self._settled(worker) > MAX_BACKLOG and not faults.done():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.005)

    async def _send(self, broker: eo.Broker, messages: Sequence[eo.Message[int]]) -> None:
        await _until_available(lambda: broker.apublish(QUEUE, messages))
        self.tally.deliveries += len(messages)

    def _settled(self, worker: eo.Worker) -> int:
        return sum(consumer.settler.settled["acked"] for consumer in worker.consumers)

    async def _wait(self, worker: eo.Worker, deliveries: int) -> None:
        """Wait until so many deliveries are settled, and no more come."""
        deadline, settled = time.monotonic() + SETTLE_TIMEOUT_S, -1
        while time.monotonic() < deadline:
            before, settled = settled, self._settled(worker)
            if settled >= deliveries and settled == before:
                return
            await asyncio.sleep(0.5)

    # -- the faults

    def _make_faults(self) -> None:
        """Make every fault of the case, once, in an order from the seed."""
        for name, make in self._random.sample(self._case.nemeses, len(self._case.nemeses)):
            time.sleep(self._random.uniform(0.5, 1.5))
            make()
            self._made[name] += 1

    # -- the count

    def _count_unrecorded(self, store: eo.Store) -> None:
        """Count the runs that had an effect and no recorded success: raised at once, or lost with its record."""
        raised = len(self._effects) - self._completed
        records = (store.get(SCOPE, message.key) for message in self._published)
        forgotten = sum(record is None or record.state != "done" for record in records)
        self.tally.unrecorded = max(raised, 0) + forgotten
        self.tally.errors["records that were lost"] = forgotten


async def _until_available(call: Callable[[], Any]) -> None:
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    while True:
        try:
            await call()
            return
        except eo.Retryable:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)
