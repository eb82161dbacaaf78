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

from effectonce.broker import Broker
from effectonce.contracts import BrokerCapabilities, Delivery, Packet
from effectonce.core.retry import Retry
from effectonce.errors import BrokerUnavailable
from effectonce.message import Message
from effectonce.worker.worker import Worker
from tests.proof.explorer.actions import perform
from tests.proof.explorer.guard_system import GuardSystem
from tests.proof.explorer.moves import moves
from tests.proof.explorer.oracle import GuardOracle
from tests.proof.explorer.queue_model import QueuedMessage, SimulatedQueue, State
from tests.proof.explorer.scenario import CRASHES, LEASE, RETENTION, Scenario
from tests.proof.explorer.simulation import Process, SimulatedDelivery, Simulation
from tests.proof.explorer.system import SCOPE, PermanentDecline, Tag
from tests.proof.explorer.transport import Transport

QUEUE = "orders"
TO = "receipts"
WINDOW = 2 * LEASE
DRAIN = 10.0
#: The header of a dead letter that says why it is one, as JSON.
WHY_DEAD = "eo-dead"


class VisibilityTimeoutQueue(SimulatedQueue):
    """The queue: a delivery is its consumer's until its window is over, and a late settlement counts all the same."""

    def __init__(self, keys: int, copies: int, backwards: bool) -> None:
        super().__init__(keys, copies)
        self.until: dict[int, int] = {}  # by delivery
        self._backwards = backwards  # what was given back comes again the last first; its delays are tenths of seconds

    def ready(self, now: int) -> list[QueuedMessage]:
        found = [entry for entry in self.entries if entry.state == "open" and self._free(entry) <= now]
        return sorted(found, key=lambda each: -each.number if each.deliveries else 1) if self._backwards else found

    def span(self, delay: float) -> int:
        return math.ceil(delay * 10) * 100_000 if self._backwards else round(delay * 1e6)

    def _free(self, entry: QueuedMessage) -> int:
        """When it may be delivered (again)."""
        if entry.ready or not entry.held:
            return entry.not_before
        return self.until[entry.held[0]]

    def next_due(self) -> int | None:
        return min((self._free(entry) for entry in self.entries if entry.state == "open"), default=None)


class WorkerOracle(GuardOracle):
    """A worker gives up what has failed for good, and what has had its attempts."""

    most: int | None = None

    def dead(self, key: str) -> None:
        history = self.history(key)
        if self.most is None or sum(grant.started for grant in history.grants) < self.most:
            super().dead(key)


class BrokerTransport(Transport):
    def broken(self, retry: bool) -> Exception:
        return BrokerUnavailable("no answer")


class FetchTransport(BrokerTransport):
    """A fetch is answered when there is a message, or, where acks wait to be sent, after a while without."""

    def __init__(self, consumer: SimulatedConsumer, carries: bool) -> None:
        self._consumer = consumer
        self._carries = carries

    def blocked(self) -> bool:
        return self.waits()

    def waits(self) -> bool:
        consumer = self._consumer
        return not (self._carries or consumer.acks or consumer.queue.ready(consumer.simulation.elapsed))


class SimulatedConsumer:
    """`contracts.Consumer` of one process: each call is a request of it."""

    def __init__(self, system: WorkerSystem, simulation: Simulation, process: Process) -> None:
        self.simulation = simulation
        self.queue: VisibilityTimeoutQueue = system.queue
        self.acks: list[SimulatedDelivery] = []  # that ride with the next fetch
        self.known: dict[str, SimulatedDelivery] = {}  # the last of each message
        self._system = system
        self._process = process

    async def receive(self, limit: int, wait: float) -> Sequence[Delivery]:
        acks, self.acks = self.acks, []

        def arrive() -> list[SimulatedDelivery]:
            self._settle(acks, "acked")
            return self._take(limit)

        try:
            taken = await self._ask("receive", arrive, FetchTransport(self, bool(acks)))
        except BaseException:
            self.acks = acks + self.acks  # perhaps sent, perhaps not: an ack may be repeated
            self._process.forget_cancelled()
            raise
        self._process.deliveries.update((each.number, each) for each in taken)
        self.known.update((f"m{each.entry.number}", each) for each in taken)
        return [self._system.pack(each) for each in taken]

    def _take(self, limit: int) -> list[SimulatedDelivery]:
        taken = []
        for entry in self.queue.ready(self.simulation.elapsed)[:limit]:
            delivery = SimulatedDelivery(self.simulation.number(), entry)
            if entry.held and not self.simulation.faults:
                self.simulation.fail("redelivered", f"message {entry.number} ({entry.key}) is in hand, and comes again")
            entry.held.clear()
            entry.taken(delivery.number)
            self.queue.until[delivery.number] = self.simulation.elapsed + WINDOW
            taken.append(delivery)
            self.simulation.narrate(f"    queue: message {entry.number} ({entry.key}), delivery {entry.deliveries}")
        return taken

    async def ack(self, deliveries: Sequence[Delivery]) -> Sequence[bool]:
        self.buffer_acks(deliveries)
        return [True] * len(deliveries)

    def buffer_acks(self, deliveries: Sequence[Delivery]) -> None:
        self.acks += self._left(deliveries)

    async def flush(self) -> None:
        acks, self.acks = self.acks, []
        try:
            if acks:
                await self._ask("ack", lambda: self._settle(acks, "acked"), BrokerTransport())
        except BaseException:
            self.acks = acks + self.acks
            raise

    async def nack(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> Sequence[bool]:
        def arrive() -> None:
            for each in deliveries:
                each.handle.entry.back(each.handle.number, self.simulation.elapsed + self.queue.span(delay))

        await self._ask("nack", arrive, BrokerTransport())
        self._left(deliveries)
        return [True] * len(deliveries)

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> Sequence[bool]:
        def arrive() -> list[bool]:
            kept = []
            for each in deliveries:
                entry, number = each.handle.entry, each.handle.number
                kept.append(entry.state == "open" and number in entry.held)
                if kept[-1]:
                    self.queue.until[number] = self.simulation.elapsed + round(seconds * 1e6)
            return kept

        if not deliveries:
            return []
        kept: list[bool] = await self._ask("extend", arrive, BrokerTransport())
        self._left([each for each, still in zip(deliveries, kept, strict=True) if not still])
        return kept

    async def dead_letter(self, delivery: Delivery, headers: Mapping[str, str]) -> bool:
        declined = json.loads(headers[WHY_DEAD])["why"] == "permanent-failure"
        await self._ask("dead", lambda: self._settle([delivery.handle], "dead", declined), BrokerTransport())
        self._left([delivery])
        return True

    async def close(self) -> None:
        await self.flush()
        for delivery in list(self._process.deliveries.values()):
            delivery.entry.back(delivery.number, self.simulation.elapsed)
        self._process.deliveries.clear()

    def _left(self, deliveries: Sequence[Delivery]) -> list[SimulatedDelivery]:
        """They are in hand no longer."""
        for each in deliveries:
            self._process.deliveries.pop(each.handle.number, None)
        return [each.handle for each in deliveries]

    def _settle(self, deliveries: Sequence[SimulatedDelivery], state: State, declined: bool = False) -> None:
        for delivery in deliveries:
            entry = delivery.entry
            if entry.state == "open" and state == "acked":
                self._system.acked(self.simulation, entry.key)
            elif entry.state == "open" and not declined:  # that its handler declines it is told, recorded or not
                self.simulation.oracle.dead(entry.key)
            entry.settle(delivery.number, state)
            self.simulation.narrate(f"    queue: message {entry.number} ({entry.key}) is {state}")

    async def _ask(self, name: str, apply: Any, transport: Transport) -> Any:
        return await self.simulation.ask(self._process, "publish", (name,), apply, transport=transport)


class SimulatedBrokerBackend:
    """`contracts.BrokerBackend` and `contracts.Publisher` of one process."""

    def __init__(self, system: WorkerSystem, simulation: Simulation, process: Process) -> None:
        self.capabilities = system.capabilities
        self._system = system
        self._simulation = simulation
        self._process = process

    async def declare(self, queue: str, *, group: str) -> None: ...

    async def check(self, queue: str, *, group: str) -> None: ...

    def consumer(self, queue: str, *, group: str, prefetch: int) -> SimulatedConsumer:
        self._process.starting = False
        consumer = self._system.consumers[self._process] = SimulatedConsumer(
            self._system, self._simulation, self._process
        )
        return consumer

    def publisher(self) -> SimulatedBrokerBackend:
        return self

    async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
        ids, sent = [packet.id for packet in packets], self._system.sent
        await self._simulation.ask(
            self._process, "publish", ("publish",), lambda: sent.extend(ids), transport=BrokerTransport()
        )
        return [None] * len(packets)

    async def close(self) -> None: ...


class WorkerSystem(GuardSystem):
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
        self._encode = Broker(lambda: None).envelope.encode  # type: ignore[arg-type, return-value]

    def make_worker(self, handle: Broker, process: Process) -> Worker:
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
            permanent=(PermanentDecline,),
            to=TO if options.get("to") else None,
        )
        async def handle_order(message: Message[Any]) -> Any:
            return await self.run_handler(message)

        return worker

    def oracle(self, simulation: Simulation) -> WorkerOracle:
        histories = WorkerOracle(simulation.fail, seen=False, at_most_once=False, retention=RETENTION)
        histories.most = self.scenario.options.get("max_attempts")
        return histories

    def open(self, simulation: Simulation) -> None:
        self.queue = simulation.broker = VisibilityTimeoutQueue(self.scenario.keys, self.scenario.copies, self.ordered)
        self.workers: dict[Process, Worker] = {}
        self.consumers: dict[Process, SimulatedConsumer] = {}
        self.sent: list[str] = []
        self.furthest = 0  # the last message whose handler has started

    def start_process(self, simulation: Simulation, process: Process) -> None:
        process.starting = True
        backend: Any = SimulatedBrokerBackend(self, simulation, process)
        worker = self.workers[process] = self.make_worker(Broker(backend), process)
        process.loop.create_task(self._serve(simulation, process, worker))
        simulation.crank(process)

    async def _serve(self, simulation: Simulation, process: Process, worker: Worker) -> None:
        try:
            await worker.serve()
        except Exception as error:
            simulation.fail("unexpected", f"w{process.slot}: the worker ends with {error!r}")
        if not simulation.over:
            simulation.narrate(f"  w{process.slot}: it has stopped")
            simulation.replace(process)

    def stop(self, simulation: Simulation, process: Process) -> None:
        self.workers[process].stop()

    def pack(self, delivery: SimulatedDelivery) -> Delivery:
        entry = delivery.entry
        packet = self._encode(self.message_of(entry), QUEUE)
        return Delivery(packet=packet, queue=QUEUE, attempt=entry.deliveries, handle=delivery)

    def message_of(self, entry: QueuedMessage) -> Message[Any]:
        """What its producer has sent."""
        ordering_key = "all" if self.ordered else None
        return Message(data=entry.key, type="paid", id=f"m{entry.number}", key=entry.key, ordering_key=ordering_key)

    async def run_handler(self, message: Message[Any]) -> Any:
        with self.at_work(message) as delivery:
            self._in_turn(delivery.entry)
            await self._handler(message.key)
            return Message(data=message.key, type="receipt", id=f"r-{message.key}") if self._sends else None

    def _in_turn(self, entry: QueuedMessage) -> None:
        """Of one ordering key, each comes to its end before the next is begun; at one consumer, that is."""
        assert self.simulation is not None
        if self.ordered and entry.number < self.furthest:
            self.simulation.fail(
                "order", f"message {entry.number} ({entry.key}) is begun after number {self.furthest} was"
            )
        self.furthest = max(self.furthest, entry.number)

    @contextmanager
    def at_work(self, message: Message[Any]) -> Iterator[SimulatedDelivery]:
        """Its handler runs: the delivery that it runs for."""
        assert self.simulation is not None
        process = self.simulation.on
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

    def acked(self, simulation: Simulation, key: str) -> None:
        simulation.oracle.acked(key)
        if self._sends and simulation.oracle.history(key).ever_recorded and f"r-{key}" not in self.sent:
            simulation.fail("lost", f"{key}: acked, and what it sends on has never left")

    def at_rest(self, simulation: Simulation) -> bool:
        return not simulation.broker.unsettled() and all(process.idle for process in simulation.processes)

    def finish(self, simulation: Simulation) -> None:
        for entry in simulation.broker.unsettled():
            simulation.fail("wedged", f"message {entry.number} ({entry.key}) is neither acked nor dead-lettered")
        for key in sorted({entry.key for entry in simulation.broker.entries}):
            history = simulation.oracle.history(key)
            lost = not history.effects and any(e.state == "acked" for e in simulation.broker.entries if e.key == key)
            if lost:
                simulation.fail("lost", f"{key}: acked, and its effect never happened")
            if not simulation.faults and history.effects != 1:
                simulation.fail(
                    "doubled" if history.effects else "lost",
                    f"{key}: nothing went wrong, and {history.effects} effects",
                )
            simulation.tally[key] = (lost, history.repeated)
        if simulation.violation is None:
            self._probe(simulation)

    def _probe(self, simulation: Simulation) -> None:
        """One more message of every key comes to its end, too."""
        done = {key for key, history in simulation.oracle.histories.items() if history.state == "done"}
        for key in sorted({entry.key for entry in simulation.broker.entries}):
            simulation.broker.send(key, probe=True).not_before = simulation.elapsed
        before = {key: history.effects for key, history in simulation.oracle.histories.items()}
        while simulation.violation is None and (found := moves(simulation, 0)):
            perform(simulation, found[0])
        for entry in simulation.broker.unsettled():
            simulation.fail("wedged", f"{entry.key}: delivered after all was over, and it comes to nothing")
        for key in done:
            if simulation.oracle.history(key).effects > before[key]:
                simulation.fail("doubled", f"{key}: recorded, and run again by a later delivery")

    def state_key(self, simulation: Simulation, tag: Tag) -> object:
        queue = self.queue
        windows = tuple(
            tuple(sorted(queue.until[each] for each in entry.held if each in queue.until)) for entry in queue.entries
        )
        return windows, tuple(sorted(set(self.sent))), self.furthest if self.ordered else 0
