"""`Worker` in mode L, by its public methods `handler`, `serve` and `stop`, on a modelled broker and store.

The system does not depend on how a worker is built. It sees deliveries and settlements (`contracts.Consumer`), claims
and completions (`contracts.Port`), the messages that handlers return (`contracts.Publisher`), the handlers themselves,
and time (the event loop's).

Each process fetches for itself: up to a batch of messages at a time, which it claims in blocks and records in blocks.
Its acks ride with the next fetch. A delivery is its own for an ack window, which it extends as long as it has the
message, started or not; then the queue delivers it to another. Requests to the queue get lost as all others do, and the
messages in a lost reply to a fetch stay away until their window is over. The guard's whole oracle judges.
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
from effectonce.message import CAUSE_HEADER, Message
from effectonce.worker.worker import Worker
from tests.proof.explorer.actions import perform
from tests.proof.explorer.guard_system import GuardSystem
from tests.proof.explorer.moves import moves
from tests.proof.explorer.oracle import GuardOracle
from tests.proof.explorer.queue_model import QueuedMessage, SimulatedQueue, State
from tests.proof.explorer.scenario import LEASE, MAX_CRASHES, RETENTION, Scenario
from tests.proof.explorer.simulation import Process, SimulatedDelivery, Simulation
from tests.proof.explorer.system import SCOPE, PermanentDecline, Tag
from tests.proof.explorer.transport import Transport

QUEUE = "orders"
OUTPUT_QUEUE = "receipts"
WINDOW = 2 * LEASE  # the ack window, in microseconds
DRAIN_S = 10.0


class VisibilityTimeoutQueue(SimulatedQueue):
    """A queue with an ack window: a delivery is its consumer's until the window ends; late settlements count all the
    same."""

    def __init__(self, keys: int, copies: int, backwards: bool) -> None:
        super().__init__(keys, copies)
        self.window_ends: dict[int, int] = {}  # by delivery
        self._backwards = backwards  # nacked messages are redelivered last first; their delays are tenths of seconds

    def list_ready(self, now: int) -> list[QueuedMessage]:
        ready = [entry for entry in self.entries if entry.state == "open" and self._due_at(entry) <= now]
        if self._backwards:
            ready.sort(key=lambda entry: -entry.number if entry.deliveries else 1)
        return ready

    def span(self, delay: float) -> int:
        return math.ceil(delay * 10) * 100_000 if self._backwards else round(delay * 1e6)

    def _due_at(self, entry: QueuedMessage) -> int:
        """Return when the message may be delivered (again)."""
        if entry.ready or not entry.held:
            return entry.not_before
        return self.window_ends[entry.held[0]]

    def next_due(self) -> int | None:
        return min((self._due_at(entry) for entry in self.entries if entry.state == "open"), default=None)


class WorkerOracle(GuardOracle):
    """Allows a worker to give up a message that failed for good, or whose attempts are exhausted."""

    max_attempts: int | None = None

    def observe_dead_letter(self, key: str) -> None:
        history = self.history(key)
        if self.max_attempts is None or sum(grant.started for grant in history.grants) < self.max_attempts:
            super().observe_dead_letter(key)


class BrokerTransport(Transport):
    def error_when_lost(self, retry: bool) -> Exception:
        return BrokerUnavailable("no answer")


class FetchTransport(BrokerTransport):
    """Carries a fetch, which is answered when there is a message or, where it carries acks, also without one."""

    def __init__(self, consumer: SimulatedConsumer, carries_acks: bool) -> None:
        self._consumer = consumer
        self._carries_acks = carries_acks

    def is_blocked(self) -> bool:
        return self.awaits_work()

    def awaits_work(self) -> bool:
        consumer = self._consumer
        return not (self._carries_acks or consumer.acks or consumer.queue.list_ready(consumer.simulation.elapsed))


class SimulatedConsumer:
    """The `contracts.Consumer` of one process: each call is a request."""

    def __init__(self, system: WorkerSystem, simulation: Simulation, process: Process) -> None:
        self.simulation = simulation
        self.queue: VisibilityTimeoutQueue = system.queue
        self.acks: list[SimulatedDelivery] = []  # which ride with the next fetch
        self.last_deliveries: dict[str, SimulatedDelivery] = {}  # by message id
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
            self.acks = acks + self.acks  # they may have been sent: an ack may be repeated
            self._process.forget_cancelled()
            raise
        self._process.deliveries.update((delivery.number, delivery) for delivery in taken)
        self.last_deliveries.update((f"m{delivery.entry.number}", delivery) for delivery in taken)
        return [self._system.pack(delivery) for delivery in taken]

    def _take(self, limit: int) -> list[SimulatedDelivery]:
        taken = []
        for entry in self.queue.list_ready(self.simulation.elapsed)[:limit]:
            delivery = SimulatedDelivery(self.simulation.next_number(), entry)
            if entry.held and not self.simulation.faults:
                self.simulation.fail(
                    "redelivered", f"message {entry.number} ({entry.key}) is not settled, and is redelivered"
                )
            entry.held.clear()
            entry.take(delivery.number)
            self.queue.window_ends[delivery.number] = self.simulation.elapsed + WINDOW
            taken.append(delivery)
            self.simulation.narrate(f"    queue: message {entry.number} ({entry.key}), delivery {entry.deliveries}")
        return taken

    async def ack(self, deliveries: Sequence[Delivery]) -> Sequence[bool]:
        self.buffer_acks(deliveries)
        return [True] * len(deliveries)

    def buffer_acks(self, deliveries: Sequence[Delivery]) -> None:
        self.acks += self._release(deliveries)

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
            for delivery in deliveries:
                due_at = self.simulation.elapsed + self.queue.span(delay)
                delivery.handle.entry.give_back(delivery.handle.number, due_at)

        await self._ask("nack", arrive, BrokerTransport())
        self._release(deliveries)
        return [True] * len(deliveries)

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> Sequence[bool]:
        def arrive() -> list[bool]:
            kept = []
            for delivery in deliveries:
                entry, number = delivery.handle.entry, delivery.handle.number
                kept.append(entry.state == "open" and number in entry.held)
                if kept[-1]:
                    self.queue.window_ends[number] = self.simulation.elapsed + round(seconds * 1e6)
            return kept

        if not deliveries:
            return []
        kept: list[bool] = await self._ask("extend", arrive, BrokerTransport())
        self._release([delivery for delivery, is_kept in zip(deliveries, kept, strict=True) if not is_kept])
        return kept

    async def dead_letter(self, delivery: Delivery, headers: Mapping[str, str]) -> bool:
        declined = json.loads(headers[CAUSE_HEADER])["why"] == "permanent-failure"
        await self._ask("dead", lambda: self._settle([delivery.handle], "dead", declined), BrokerTransport())
        self._release([delivery])
        return True

    async def close(self) -> None:
        await self.flush()
        for delivery in list(self._process.deliveries.values()):
            delivery.entry.give_back(delivery.number, self.simulation.elapsed)
        self._process.deliveries.clear()

    def _release(self, deliveries: Sequence[Delivery]) -> list[SimulatedDelivery]:
        """Note that the process no longer has these deliveries."""
        for delivery in deliveries:
            self._process.deliveries.pop(delivery.handle.number, None)
        return [delivery.handle for delivery in deliveries]

    def _settle(self, deliveries: Sequence[SimulatedDelivery], state: State, declined: bool = False) -> None:
        for delivery in deliveries:
            entry = delivery.entry
            if entry.state == "open" and state == "acked":
                self._system.observe_ack(self.simulation, entry.key)
            elif entry.state == "open" and not declined:  # a declined message is a dead letter, recorded or not
                self.simulation.oracle.observe_dead_letter(entry.key)
            entry.settle(delivery.number, state)
            self.simulation.narrate(f"    queue: message {entry.number} ({entry.key}) is {state}")

    async def _ask(self, name: str, apply: Any, transport: Transport) -> Any:
        return await self.simulation.ask(self._process, "publish", (name,), apply, transport=transport)


class SimulatedBrokerBackend:
    """The `contracts.BrokerBackend` and `contracts.Publisher` of one process."""

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
    handler ``max_attempts``, ``to`` (its result is published), and ``takes`` (seconds, during which the window must be
    extended)."""

    pulls = True
    remembers = True

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self.capabilities = BrokerCapabilities(
            name="modelled",
            batch=scenario.options.get("batch", 1),
            ack_window_s=WINDOW / 1e6,
            extends=True,
            counts_attempts=True,
        )
        self._encode = Broker(lambda: None).envelope.encode  # type: ignore[arg-type, return-value]

    def make_worker(self, handle: Broker, process: Process) -> Worker:
        """Make the worker of ``process``, with the user's handler."""
        options = self.scenario.options
        worker = Worker(handle, store=process.store, prefetch=4, drain=DRAIN_S)

        @worker.handler(
            QUEUE,
            scope=f"{SCOPE}/line",
            fingerprint=False,
            concurrency=2,
            lease=LEASE / 1e6,
            retention=RETENTION / 1e6,
            retry=Retry(options.get("max_attempts"), first=1e-6, cap=1e-6, jitter=False, max_crashes=MAX_CRASHES),
            permanent=(PermanentDecline,),
            to=OUTPUT_QUEUE if options.get("to") else None,
        )
        async def handle_order(message: Message[Any]) -> Any:
            return await self.run_handler(message)

        return worker

    def oracle(self, simulation: Simulation) -> WorkerOracle:
        histories = WorkerOracle(simulation.fail, seen=False, at_most_once=False, retention=RETENTION)
        histories.max_attempts = self.scenario.options.get("max_attempts")
        return histories

    def open(self, simulation: Simulation) -> None:
        self.queue = simulation.broker = VisibilityTimeoutQueue(self.scenario.keys, self.scenario.copies, self.ordered)
        self.workers: dict[Process, Worker] = {}
        self.consumers: dict[Process, SimulatedConsumer] = {}
        self.sent: list[str] = []
        self.last_started = 0  # the highest number of a message whose handler has started

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
            simulation.fail("unexpected", f"w{process.slot}: the worker ended with {error!r}")
        if not simulation.is_over:
            simulation.narrate(f"  w{process.slot}: it has stopped")
            simulation.replace(process)

    def stop(self, simulation: Simulation, process: Process) -> None:
        self.workers[process].stop()

    def pack(self, delivery: SimulatedDelivery) -> Delivery:
        entry = delivery.entry
        packet = self._encode(self.message_of(entry), QUEUE)
        return Delivery(packet=packet, queue=QUEUE, attempt=entry.deliveries, handle=delivery)

    def message_of(self, entry: QueuedMessage) -> Message[Any]:
        """Return the message as its producer sent it."""
        ordering_key = "all" if self.ordered else None
        return Message(data=entry.key, type="paid", id=f"m{entry.number}", key=entry.key, ordering_key=ordering_key)

    async def run_handler(self, message: Message[Any]) -> Any:
        with self.handling(message) as delivery:
            self._check_order(delivery.entry)
            await self._handler(message.key)
            return Message(data=message.key, type="receipt", id=f"r-{message.key}") if self._sends else None

    def _check_order(self, entry: QueuedMessage) -> None:
        """Require that one consumer ends each message of an ordering key before it begins the next."""
        assert self.simulation is not None
        if self.ordered and entry.number < self.last_started:
            self.simulation.fail(
                "order", f"message {entry.number} ({entry.key}) is begun after number {self.last_started}"
            )
        self.last_started = max(self.last_started, entry.number)

    @contextmanager
    def handling(self, message: Message[Any]) -> Iterator[SimulatedDelivery]:
        """Yield the delivery of ``message``, whose handler runs inside the ``with``."""
        assert self.simulation is not None
        process = self.simulation.running_process
        delivery = self.consumers[process].last_deliveries[message.id]
        lost = delivery.number not in process.deliveries  # it is another consumer's by now, and runs all the same
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

    def observe_ack(self, simulation: Simulation, key: str) -> None:
        simulation.oracle.observe_ack(key)
        if self._sends and simulation.oracle.history(key).ever_recorded and f"r-{key}" not in self.sent:
            simulation.fail("lost", f"{key}: acked, and its result was never published")

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
        """Send one more message of every key, and require that it is settled without a second effect."""
        done = {key for key, history in simulation.oracle.histories.items() if history.state == "done"}
        for key in sorted({entry.key for entry in simulation.broker.entries}):
            simulation.broker.send(key, probe=True).not_before = simulation.elapsed
        before = {key: history.effects for key, history in simulation.oracle.histories.items()}
        while simulation.violation is None and (options := moves(simulation, 0)):
            perform(simulation, options[0])
        for entry in simulation.broker.unsettled():
            simulation.fail("wedged", f"{entry.key}: delivered after the end, and never settled")
        for key in done:
            if simulation.oracle.history(key).effects > before[key]:
                simulation.fail("doubled", f"{key}: recorded, and run again by a later delivery")

    def state_key(self, simulation: Simulation, tag: Tag) -> object:
        queue = self.queue
        windows = tuple(
            tuple(sorted(queue.window_ends[delivery] for delivery in entry.held if delivery in queue.window_ends))
            for entry in queue.entries
        )
        return windows, tuple(sorted(set(self.sent))), self.last_started if self.ordered else 0
