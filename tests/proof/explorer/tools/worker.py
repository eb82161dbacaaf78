"""`Worker` in mode L, by its public face: `handler`, `serve` and `stop`, on a modelled broker and store.

Nothing here knows how a worker is built. It sees what goes in and out: deliveries and settlements
(`contracts.Consumer`), claims and completions (`contracts.Port`), what handlers send on (`contracts.Publisher`), the
handlers themselves, and time (the event loop's).

Each process fetches for itself: up to a batch of messages at a time, which it claims in blocks and records in blocks.
What it acks rides with the next fetch. A delivery is its own for a window, which it extends as long as it has the
message in hand, started or not; then the queue gives it to another. Requests to the queue get lost as all others do,
and with the reply to a fetch so do the messages in it, until their window is over. The guard's whole oracle watches.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from effectonce.broker import Broker as Handle
from effectonce.contracts import BrokerCapabilities, Packet
from effectonce.contracts import Delivery as Delivered
from effectonce.core.retry import Retry
from effectonce.errors import BrokerUnavailable
from effectonce.message import Message
from effectonce.worker import Worker
from tests.proof.explorer.broker import Broker, Entry, State
from tests.proof.explorer.moves import moves
from tests.proof.explorer.oracle import Ledger
from tests.proof.explorer.scenario import CRASHES, LEASE, RETENTION, Scenario
from tests.proof.explorer.stage import SCOPE, Declined, Tag
from tests.proof.explorer.steps import perform
from tests.proof.explorer.wire import Ties
from tests.proof.explorer.workers import GuardStage
from tests.proof.explorer.world import Delivery, Process, World

QUEUE = "orders"
TO = "receipts"
WINDOW = 2 * LEASE
DRAIN = 10.0
#: The header of a dead letter that says why it is one, as JSON.
WHY_DEAD = "eo-dead"


class Windowed(Broker):
    """The queue: a delivery is its consumer's until its window is over, and a late settlement counts all the same."""

    def __init__(self, keys: int, copies: int, backwards: bool) -> None:
        super().__init__(keys, copies)
        self.until: dict[int, int] = {}  # by delivery
        self._backwards = backwards  # what was given back comes again the last first; its delays are tenths of seconds

    def ready(self, now: int) -> list[Entry]:
        found = [entry for entry in self.entries if entry.state == "open" and self._free(entry) <= now]
        return sorted(found, key=lambda each: -each.number if each.deliveries else 1) if self._backwards else found

    def span(self, delay: float) -> int:
        return math.ceil(delay * 10) * 100_000 if self._backwards else round(delay * 1e6)

    def _free(self, entry: Entry) -> int:
        """When it may be delivered (again)."""
        if entry.ready or not entry.held:
            return entry.not_before
        return self.until[entry.held[0]]

    def next_due(self) -> int | None:
        return min((self._free(entry) for entry in self.entries if entry.state == "open"), default=None)


class Books(Ledger):
    """A worker gives up what has failed for good, and what has had its attempts."""

    most: int | None = None

    def dead(self, key: str) -> None:
        book = self.book(key)
        if self.most is None or sum(grant.started for grant in book.grants) < self.most:
            super().dead(key)


class Sent(Ties):
    def broken(self, retry: bool) -> Exception:
        return BrokerUnavailable("no answer")


class Fetching(Sent):
    """A fetch is answered when there is a message, or, where acks wait to be sent, after a while without."""

    def __init__(self, consumer: Consumer, carries: bool) -> None:
        self._consumer = consumer
        self._carries = carries

    def blocked(self) -> bool:
        return self.waits()

    def waits(self) -> bool:
        consumer = self._consumer
        return not (self._carries or consumer.acks or consumer.queue.ready(consumer.world.elapsed))


class Consumer:
    """`contracts.Consumer` of one process: each call is a request of it."""

    def __init__(self, stage: WorkerStage, world: World, process: Process) -> None:
        self.world = world
        self.queue: Windowed = stage.queue
        self.acks: list[Delivery] = []  # that ride with the next fetch
        self.known: dict[str, Delivery] = {}  # the last of each message
        self._stage = stage
        self._process = process

    async def receive(self, limit: int, wait: float) -> Sequence[Delivered]:
        acks, self.acks = self.acks, []

        def arrive() -> list[Delivery]:
            self._settle(acks, "acked")
            return self._take(limit)

        try:
            taken = await self._ask("receive", arrive, Fetching(self, bool(acks)))
        except BaseException:
            self.acks = acks + self.acks  # perhaps sent, perhaps not: an ack may be repeated
            self._process.forget_cancelled()
            raise
        self._process.deliveries.update((each.number, each) for each in taken)
        self.known.update((f"m{each.entry.number}", each) for each in taken)
        return [self._stage.packed(each) for each in taken]

    def _take(self, limit: int) -> list[Delivery]:
        taken = []
        for entry in self.queue.ready(self.world.elapsed)[:limit]:
            delivery = Delivery(self.world.number(), entry)
            if entry.held and not self.world.faults:
                self.world.fail("redelivered", f"message {entry.number} ({entry.key}) is in hand, and comes again")
            entry.held.clear()
            entry.taken(delivery.number)
            self.queue.until[delivery.number] = self.world.elapsed + WINDOW
            taken.append(delivery)
            self.world.tell(f"    queue: message {entry.number} ({entry.key}), delivery {entry.deliveries}")
        return taken

    async def ack(self, deliveries: Sequence[Delivered]) -> Sequence[bool]:
        for each in self._left(deliveries):
            self.acks.append(each)
        return [True] * len(deliveries)

    async def flush(self) -> None:
        acks, self.acks = self.acks, []
        try:
            if acks:
                await self._ask("ack", lambda: self._settle(acks, "acked"), Sent())
        except BaseException:
            self.acks = acks + self.acks
            raise

    async def nack(self, deliveries: Sequence[Delivered], delay: float = 0.0) -> Sequence[bool]:
        def arrive() -> None:
            for each in deliveries:
                each.handle.entry.back(each.handle.number, self.world.elapsed + self.queue.span(delay))

        await self._ask("nack", arrive, Sent())
        self._left(deliveries)
        return [True] * len(deliveries)

    async def extend(self, deliveries: Sequence[Delivered], seconds: float) -> Sequence[bool]:
        def arrive() -> list[bool]:
            kept = []
            for each in deliveries:
                entry, number = each.handle.entry, each.handle.number
                kept.append(entry.state == "open" and number in entry.held)
                if kept[-1]:
                    self.queue.until[number] = self.world.elapsed + round(seconds * 1e6)
            return kept

        if not deliveries:
            return []
        kept: list[bool] = await self._ask("extend", arrive, Sent())
        self._left([each for each, still in zip(deliveries, kept, strict=True) if not still])
        return kept

    async def dead_letter(self, delivery: Delivered, headers: Mapping[str, str]) -> bool:
        declined = json.loads(headers[WHY_DEAD])["why"] == "permanent-failure"
        await self._ask("dead", lambda: self._settle([delivery.handle], "dead", declined), Sent())
        self._left([delivery])
        return True

    async def close(self) -> None:
        await self.flush()
        for delivery in list(self._process.deliveries.values()):
            delivery.entry.back(delivery.number, self.world.elapsed)
        self._process.deliveries.clear()

    def _left(self, deliveries: Sequence[Delivered]) -> list[Delivery]:
        """They are in hand no longer."""
        for each in deliveries:
            self._process.deliveries.pop(each.handle.number, None)
        return [each.handle for each in deliveries]

    def _settle(self, deliveries: Sequence[Delivery], state: State, declined: bool = False) -> None:
        for delivery in deliveries:
            entry = delivery.entry
            if entry.state == "open" and state == "acked":
                self._stage.acked(self.world, entry.key)
            elif entry.state == "open" and not declined:  # that its handler declines it is told, recorded or not
                self.world.ledger.dead(entry.key)
            entry.settle(delivery.number, state)
            self.world.tell(f"    queue: message {entry.number} ({entry.key}) is {state}")

    async def _ask(self, name: str, apply: Any, ties: Ties) -> Any:
        return await self.world.ask(self._process, "publish", (name,), apply, ties=ties)


class QueueBackend:
    """`contracts.BrokerBackend` and `contracts.Publisher` of one process."""

    def __init__(self, stage: WorkerStage, world: World, process: Process) -> None:
        self.capabilities = stage.capabilities
        self._stage = stage
        self._world = world
        self._process = process

    async def declare(self, queue: str, *, group: str) -> None: ...

    async def check(self, queue: str, *, group: str) -> None: ...

    def consumer(self, queue: str, *, group: str, prefetch: int) -> Consumer:
        self._process.starting = False
        consumer = self._stage.consumers[self._process] = Consumer(self._stage, self._world, self._process)
        return consumer

    def publisher(self) -> QueueBackend:
        return self

    async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
        ids, sent = [packet.id for packet in packets], self._stage.sent
        await self._world.ask(self._process, "publish", ("publish",), lambda: sent.extend(ids), ties=Sent())
        return [None] * len(packets)

    async def close(self) -> None: ...


class WorkerStage(GuardStage):
    """``options``: of the worker ``batch`` (messages in a fetch) and ``ordered`` (they have one ordering key); of the
    handler ``max_attempts``, ``to`` (it sends on), and ``takes`` (seconds, through which the window has to be
    extended)."""

    pulls = True
    remembers = True

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self.capabilities = BrokerCapabilities(
            name="modelled",
            batch=scenario.options.get("batch", 1),
            ack_window=WINDOW / 1e6,
            extends=True,
            counts_attempts=True,
        )
        self._encode = Handle(lambda: None).envelope.encode  # type: ignore[arg-type, return-value]

    def hired(self, handle: Handle, process: Process) -> Worker:
        """The worker of ``process``, with what its user has written."""
        options = self.scenario.options
        worker = Worker(handle, store=process.store, prefetch=4, drain=DRAIN)

        @worker.handler(
            QUEUE,
            scope=f"{SCOPE}/line",
            fingerprint=False,
            concurrency=2,
            lease=LEASE / 1e6,
            retention=RETENTION / 1e6,
            retry=Retry(options.get("max_attempts"), first=1e-6, cap=1e-6, jitter=False, max_crashes=CRASHES),
            permanent=(Declined,),
            to=TO if options.get("to") else None,
        )
        async def handle_order(message: Message[Any]) -> Any:
            return await self.handled(message)

        return worker

    def ledger(self, world: World) -> Books:
        books = Books(world.fail, seen=False, at_most_once=False, retention=RETENTION)
        books.most = self.scenario.options.get("max_attempts")
        return books

    def open(self, world: World) -> None:
        self.queue = world.broker = Windowed(self.scenario.keys, self.scenario.copies, self.ordered)
        self.workers: dict[Process, Worker] = {}
        self.consumers: dict[Process, Consumer] = {}
        self.sent: list[str] = []
        self.furthest = 0  # the last message whose handler has started

    def born(self, world: World, process: Process) -> None:
        process.starting = True
        backend: Any = QueueBackend(self, world, process)
        worker = self.workers[process] = self.hired(Handle(backend), process)
        process.loop.create_task(self._serve(world, process, worker))
        world.crank(process)

    async def _serve(self, world: World, process: Process, worker: Worker) -> None:
        try:
            await worker.serve()
        except Exception as error:
            world.fail("unexpected", f"w{process.slot}: the worker ends with {error!r}")
        if not world.over:
            world.tell(f"  w{process.slot}: it has stopped")
            world.replace(process)

    def stop(self, world: World, process: Process) -> None:
        self.workers[process].stop()

    def packed(self, delivery: Delivery) -> Delivered:
        entry = delivery.entry
        packet = self._encode(self.message_of(entry), QUEUE)
        return Delivered(packet=packet, queue=QUEUE, attempt=entry.deliveries, handle=delivery)

    def message_of(self, entry: Entry) -> Message[Any]:
        """What its producer has sent."""
        ordering_key = "all" if self.ordered else None
        return Message(data=entry.key, type="paid", id=f"m{entry.number}", key=entry.key, ordering_key=ordering_key)

    async def handled(self, message: Message[Any]) -> Any:
        with self.at_work(message) as delivery:
            self._in_turn(delivery.entry)
            await self._handler(message.key)
            return Message(data=message.key, type="receipt", id=f"r-{message.key}") if self._sends else None

    def _in_turn(self, entry: Entry) -> None:
        """Of one ordering key, each comes to its end before the next is begun; at one consumer, that is."""
        assert self.world is not None
        if self.ordered and entry.number < self.furthest:
            self.world.fail("order", f"message {entry.number} ({entry.key}) is begun after number {self.furthest} was")
        self.furthest = max(self.furthest, entry.number)

    @contextmanager
    def at_work(self, message: Message[Any]) -> Iterator[Delivery]:
        """Its handler runs: the delivery that it runs for."""
        assert self.world is not None
        process = self.world.on
        delivery = self.consumers[process].known[message.id]
        lost = delivery.number not in process.deliveries  # it has become another's, and runs all the same
        process.deliveries[delivery.number] = delivery
        delivery.task = asyncio.current_task()
        try:
            yield delivery
        finally:
            delivery.task = None
            if lost:
                process.deliveries.pop(delivery.number, None)

    @property
    def ordered(self) -> bool:
        return bool(self.scenario.options.get("ordered"))

    @property
    def _sends(self) -> bool:
        return bool(self.scenario.options.get("to"))

    def acked(self, world: World, key: str) -> None:
        world.ledger.acked(key)
        if self._sends and world.ledger.book(key).ever_recorded and f"r-{key}" not in self.sent:
            world.fail("lost", f"{key}: acked, and what it sends on has never left")

    def at_rest(self, world: World) -> bool:
        return not world.broker.unsettled() and all(process.idle for process in world.processes)

    def finish(self, world: World) -> None:
        for entry in world.broker.unsettled():
            world.fail("wedged", f"message {entry.number} ({entry.key}) is neither acked nor dead-lettered")
        for key in sorted({entry.key for entry in world.broker.entries}):
            book = world.ledger.book(key)
            lost = not book.effects and any(e.state == "acked" for e in world.broker.entries if e.key == key)
            if lost:
                world.fail("lost", f"{key}: acked, and its effect never happened")
            if not world.faults and book.effects != 1:
                world.fail(
                    "doubled" if book.effects else "lost", f"{key}: nothing went wrong, and {book.effects} effects"
                )
            world.tally[key] = (lost, book.repeated)
        if world.violation is None:
            self._probe(world)

    def _probe(self, world: World) -> None:
        """One more message of every key comes to its end, too."""
        done = {key for key, book in world.ledger.books.items() if book.state == "done"}
        for key in sorted({entry.key for entry in world.broker.entries}):
            world.broker.send(key, probe=True).not_before = world.elapsed
        before = {key: book.effects for key, book in world.ledger.books.items()}
        while world.violation is None and (found := moves(world, 0)):
            perform(world, found[0])
        for entry in world.broker.unsettled():
            world.fail("wedged", f"{entry.key}: delivered after all was over, and it comes to nothing")
        for key in done:
            if world.ledger.book(key).effects > before[key]:
                world.fail("doubled", f"{key}: recorded, and run again by a later delivery")

    def standing(self, world: World, tag: Tag) -> object:
        queue = self.queue
        windows = tuple(
            tuple(sorted(queue.until[each] for each in entry.held if each in queue.until)) for entry in queue.entries
        )
        return windows, tuple(sorted(set(self.sent))), self.furthest if self.ordered else 0
