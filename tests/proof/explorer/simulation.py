"""The simulation: processes, a store, a broker and a clock.

It decides nothing: `moves` lists what may happen next, a search picks one of them, `actions` performs it. The guard's
own code runs unchanged, on the real memory store; a killed process never runs again, and nothing of it is unwound.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any

from effectonce.core.guarded_call.run import Run, current
from effectonce.core.run_sync import run_sync
from effectonce.core.store_runtime import StoreRuntime
from effectonce.errors import EffectOnceError, StoreUnavailable
from effectonce.record import Answer, Batchable, Claim, Reply, Settlement, SweepResult
from effectonce.store import Store
from effectonce.testing.fault_points import operation_name

from .loop import SimulatedLoop
from .oracle import CONTRACT, PROMISES, Grant
from .queue_model import QueuedMessage, SimulatedQueue
from .scenario import SECOND
from .system import PermanentDecline, SystemUnderTest, Word
from .transport import FREE, DelayedRequest, Kind, SimulatedRequest, SimulatedStoreBackend, Transport

START_US = 1_767_225_600_000_000
ENFORCED = PROMISES | CONTRACT

Move = tuple[Any, ...]


class SimulatedDelivery:
    """One delivery of an entry to a process."""

    def __init__(self, number: int, entry: QueuedMessage) -> None:
        self.number = number
        self.entry = entry
        self.task: asyncio.Task[None] | None = None
        self.inside = True  # the guarded call has not returned
        self.cancelled = False
        self.handler_error: BaseException | None = None  # that the handler raised
        self.call_error: BaseException | None = None  # that the guarded call raised

    def __repr__(self) -> str:
        """Name the delivery by what a worker can know of it."""
        return f"{self.entry.key}, delivery {self.entry.deliveries}"


class HandlerCall:
    """One running handler."""

    def __init__(
        self, process: Process, delivery: SimulatedDelivery, key: str, run: Run | None, grant: Grant | None
    ) -> None:
        self.process = process
        self.delivery = delivery
        self.key = key
        self.run = run
        self.grant = grant


class Process:
    """One worker process: its event loop, its store, and its requests and deliveries in flight."""

    def __init__(self, simulation: Simulation, slot: int) -> None:
        self.slot = slot
        self.loop = SimulatedLoop(simulation.monotonic)
        self.loop.run_in_thread = self._in_thread
        self.requests: dict[int, SimulatedRequest] = {}
        self.deliveries: dict[int, SimulatedDelivery] = {}
        self.calls: list[HandlerCall] = []
        self.events: list[object] = []  # what it received since it was last idle; its state is a function of it
        self.owners: list[bytes] = []  # of the claims that it has sent since then
        self.cancelled = False  # whether one of its tasks was, since then
        self.stopping = False
        self.heartbeat_fault = ""  # the fault of the heartbeat's round trip
        self.past_hash = 0  # a hash of the events before that, where the system remembers them
        self.starting = False  # it runs its start-up checks, which are not a part of the schedule
        self._simulation = simulation
        self._wire: SimulatedStoreBackend | None = None
        self.store = Store(self._open, sweep_every=None)

    @property
    def runtime(self) -> StoreRuntime:
        """The store's runtime, opened with the first delivery. Its wall clock is ahead or behind."""
        return self.store.runtime

    def _open(self) -> SimulatedStoreBackend:
        skew = (1, -1, 0)[self.slot % 3] * self._simulation.system.skew
        self._wire = SimulatedStoreBackend(self._simulation, self, skew)
        return self._wire

    def record_event(self, event: object) -> None:
        """Record something that this process has received."""
        self.events.append((self._simulation.elapsed, event) if self._simulation.system.remembers else event)

    def forget_events(self) -> None:
        """Forget the events of a process that is idle; one that remembers keeps their hash."""
        if self._simulation.system.remembers:
            self.past_hash = hash((self.past_hash, repr(self.events)))
        self.events.clear()
        self.owners.clear()
        self.cancelled = False

    async def _in_thread(self, call: Callable[[], Any]) -> Any:
        simulation = self._simulation
        if self.starting:
            return call()

        def run() -> tuple[Any, Exception | None]:
            simulation.switch_to(self)
            try:
                return call(), None
            except Exception as error:
                return None, error

        name = getattr(getattr(call, "args", [call])[0], "__name__", "thread").strip("_")
        value, error = await simulation.ask_memory(self, name, run)
        if error is not None:
            raise error
        return value

    @property
    def leased(self) -> Collection[Any]:
        """The runs whose leases its heartbeat renews."""
        return () if self._wire is None else self.runtime.leased_runs

    @property
    def idle(self) -> bool:
        requests = self.requests.values()
        return not self.deliveries and (not requests or all(request.transport.awaits_work() for request in requests))

    def forget_cancelled(self) -> None:
        """Drop the requests whose callers were cancelled: they were never sent."""
        for number in [number for number, request in self.requests.items() if request.future.cancelled()]:
            del self.requests[number]

    def end(self) -> None:
        """Break reference cycles, so that a million schedules do not fill the memory."""
        self.loop.close()
        if self._wire is not None:
            self._wire.release()
            self.runtime.__dict__.clear()  # a `Run` refers to it, and the collector does not look into those


class StoreClock:
    """The store's own time."""

    manual = True

    def __init__(self, simulation: Simulation) -> None:
        self.now = simulation.now
        self.monotonic = simulation.monotonic


class Simulation:
    """One schedule of a system under test. ``story``, where it is a list, collects what happens, in words."""

    def __init__(
        self, system: SystemUnderTest, *, rules: frozenset[str] = ENFORCED, story: list[str] | None = None
    ) -> None:
        self.system = system
        self.scenario = scenario = system.scenario
        system.simulation = self
        self.story = story
        self.elapsed = 0  # microseconds
        self.offset = 0  # of the store's clock, where it has jumped
        self.steps = 0
        self.faults = 0
        self.free_moves = 0  # how many of the moves that were last listed are not faults
        self.sweep_has_failed = False
        self.swept_at_step = 0
        self.violation: tuple[str, str] | None = None
        self.crash_points: set[str] = set()
        self.memory: set[str] = set()  # the keys that the naive arms have marked
        self.tally: dict[str, tuple[bool, int]] = {}  # by key, at the end: whether it was lost, how often repeated
        self.is_over = False
        self.run_others: Callable[[], None] | None = None  # while a heartbeat waits; set by the search
        self._rules = rules
        self._counter = 0
        self.backend = system.backend(clock=StoreClock(self))
        self.port = self.backend.sync_port()
        self.broker = SimulatedQueue(scenario.keys, scenario.copies)
        self.oracle = system.oracle(self)
        self.processes = [Process(self, slot) for slot in range(scenario.workers)]
        self.graveyard: list[Process] = []
        self.delayed: list[DelayedRequest] = []
        self.last_slot = 0  # of the process that ran last
        self.running_process: Process = self.processes[0]
        system.open(self)
        for process in self.processes:
            system.start_process(self, process)

    # -- time, verdict, words

    def now(self) -> int:
        """The store's clock."""
        return START_US + self.elapsed + self.offset

    def monotonic(self) -> float:
        return self.elapsed / 1e6

    def fail(self, rule: str, text: str) -> None:
        """Record a violation. The first one is the verdict."""
        if self.violation is None and rule in self._rules and not self.is_over:
            self.narrate(f"VIOLATION ({rule}) {text}")
            self.violation = (rule, text)

    def narrate(self, text: str) -> None:
        """Add a line to the story, which ends with the first violation."""
        if self.story is not None and self.violation is None:
            self.story.append(f"{self.elapsed / 1e6:9.3f}s  {text}")

    def next_number(self) -> int:
        self._counter += 1
        return self._counter

    # -- turns

    def run_process(self, process: Process) -> None:
        """Run ``process`` until it waits for something."""
        self.last_slot = process.slot
        self.crank(process)
        if process.loop.unhandled_errors:
            self.fail("unexpected", process.loop.unhandled_errors[0])
        if process.idle and process.events:
            key = self.oracle.find_abandoned(process.owners)
            if key is not None:
                self.fail("abandoned", f"{key}: w{process.slot} is idle, nothing broke, and its claim still stands")
            process.forget_events()

    def crank(self, process: Process, most: int = 1_000_000) -> None:
        self.switch_to(process)
        process.loop.crank(most)

    def fire(self, process: Process) -> None:
        """Run the timers of ``process`` that are due."""
        self.switch_to(process)
        process.loop.fire()

    def switch_to(self, process: Process) -> None:
        """Make ``process`` the one whose code runs."""
        self.running_process = process
        self.system.switch_to(process)

    def check_leases(self) -> None:
        """Require, after every move, that a handler which is told that its lease holds has it."""
        if self.offset:
            return  # the store's clock has jumped, and no worker can know that
        now = self.now() - 1  # a worker counts in floating point: it may be wrong about the very microsecond
        for process in self.processes:
            for call in process.calls:
                run, grant = call.run, call.grant
                if run is None or grant is None or run.lease_lost or self.oracle.holds(call.key, grant, now):
                    continue
                self.fail("lease-lie", f"{call.key}: w{process.slot} is told that its lease holds")

    def kill(self, process: Process) -> None:
        """Kill ``process``, which never runs again, and start a new one in its place."""
        self.oracle.blamed.update(process.owners)
        for call in process.calls:
            if call.grant is not None:
                call.grant.running = False
        for delivery in process.deliveries.values():
            delivery.entry.give_back(delivery.number, self.elapsed)
        self.system.process_died(self, process)
        self.replace(process)

    def replace(self, process: Process) -> None:
        """Start a new process in the place of ``process``, which has ended."""
        process.loop.closed = True
        self.graveyard.append(process)
        successor = self.processes[process.slot] = Process(self, process.slot)
        self.system.start_process(self, successor)

    def end(self) -> None:
        """Release everything: what is unwound from now on has no effect."""
        self.is_over = True
        self.system.simulation = None
        self.system.store.use_runtime(None)
        for process in (*self.processes, *self.graveyard):
            process.end()

    def request(self, number: int) -> SimulatedRequest:
        for process in self.processes:
            request = process.requests.get(number)
            if request is not None:
                return request
        raise LookupError(f"request {number} is not there: this schedule was made for other code")

    def blame(self, request: SimulatedRequest) -> None:
        """Note that a fault has hit ``request``: its claims may be left to run out."""
        for op in request.ops:
            owner = getattr(op, "owner", None)
            if owner is not None:
                self.oracle.blamed.add(owner)

    # -- requests

    def ask(
        self,
        process: Process,
        kind: Kind,
        names: tuple[str, ...],
        apply: Callable[[], Any],
        ops: Sequence[Batchable] = (),
        of: int = 0,
        transport: Transport = FREE,
    ) -> asyncio.Future[Any]:
        request = SimulatedRequest(self.next_number(), process, kind, names, apply, ops, of, transport)
        process.requests[request.number] = request
        return request.future

    def ask_store(self, process: Process, batch: Sequence[Batchable]) -> asyncio.Future[Any]:
        for op in batch:
            if isinstance(op, Claim) and op.owner not in process.owners:
                process.owners.append(op.owner)
        names = tuple(dict.fromkeys(map(operation_name, batch)))
        apply = lambda: self.apply(batch, process)  # noqa: E731
        return self.ask(process, "store", names, apply, batch, transport=self.system.transport(batch))

    def apply(self, batch: Sequence[Batchable], sender: Process | None = None) -> list[Reply]:
        """Execute ``batch`` at the store, now."""
        replies = [run_sync(self.port.run([op]))[0] for op in batch]
        now = self.now()
        for op, reply in zip(batch, replies, strict=True):
            if self.story is not None:
                self.narrate(f"    store: {_describe_reply(op, reply)}")
            self.oracle.observe(op, reply, now)
        return replies

    def ask_broker(self, process: Process, delivery: SimulatedDelivery, word: Word) -> asyncio.Future[Any]:
        def settle() -> None:
            entry = delivery.entry
            if not self.scenario.naive and entry.state == "open":
                if word == "ack":
                    self.oracle.observe_ack(entry.key)
                elif word == "dead" and not isinstance(delivery.call_error, PermanentDecline):
                    self.oracle.observe_dead_letter(entry.key)
            entry.settle(delivery.number, "acked" if word == "ack" else "parked" if word == "park" else "dead")

        return self.ask(process, "broker", (word,), settle)

    def ask_memory(self, process: Process, name: str, apply: Callable[[], Any]) -> asyncio.Future[Any]:
        return self.ask(process, "memo", (name,), apply)

    def effect(self, call: HandlerCall, name: str) -> asyncio.Future[Any]:
        """Request the effect itself, which happens when the request is executed, even if its reply is lost."""

        def execute() -> str:
            count = self.oracle.history(call.key).effects + 1
            self.narrate(f"    {name} {call.key}: effect number {count}")
            if call.run is None:  # a naive arm, which is judged by its end
                self.oracle.history(call.key).count_effect(0)
            else:
                self.oracle.observe_effect(call.key, call.grant)
            return f"{name}-{call.key}-{count}"

        return self.ask(call.process, "effect", ("effect",), execute, of=call.delivery.number)

    def pause_handler(self, call: HandlerCall) -> asyncio.Future[Any]:
        """Stop the handler at a point at which it may raise, be cancelled, or die."""
        return self.ask(call.process, "point", ("handler",), _nothing, of=call.delivery.number)

    def current_delivery(self) -> tuple[Process, SimulatedDelivery]:
        """Return the process that runs, and the delivery whose task runs."""
        process = self.running_process
        task = asyncio.current_task()
        deliveries = list(process.deliveries.values())
        return process, next((delivery for delivery in deliveries if delivery.task is task), deliveries[0])

    def start_handler(self, key: str) -> HandlerCall:
        """Record that a handler starts in the process that runs."""
        process, delivery = self.current_delivery()
        run = grant = None
        if not self.scenario.naive:
            run = current()
            if not self.scenario.seen:
                grant = self.oracle.grant(key, run.owner, run.token)
                self.oracle.observe_start(key, grant, self.now())
                if run.lease_lost and grant is not None and not self.oracle.holds(key, grant, self.now()):
                    self.fail("late-start", f"{key}: w{process.slot} starts with a lease that has ended")
        call = HandlerCall(process, delivery, key, run, grant)
        process.calls.append(call)
        return call

    def end_handler(self, call: HandlerCall) -> None:
        if not self.is_over:
            call.process.calls.remove(call)

    def end_call(self, process: Process, delivery: SimulatedDelivery, failure: BaseException | None) -> None:
        """Record how the guarded call ended, and judge its error."""
        delivery.inside = False
        delivery.call_error = failure
        cancelled = isinstance(failure, asyncio.CancelledError)
        raised = delivery.handler_error
        known = cancelled or failure is raised or failure is None
        if delivery.cancelled and not cancelled:
            self.fail("cancel", f"w{process.slot}: cancelled, yet the call ended with {failure!r}")
        elif raised is not None and not cancelled and failure is not raised:
            self.fail("error", f"w{process.slot}: the handler raised {raised!r}, the caller got {failure!r}")
        elif not known and not isinstance(failure, EffectOnceError | PermanentDecline):
            self.fail("unexpected", f"w{process.slot}: the call raised {failure!r}")
        self.narrate(f"  w{process.slot}: the guarded call {'returned' if failure is None else f'raised {failure!r}'}")

    def end_delivery(self, process: Process, delivery: SimulatedDelivery, wait: float) -> None:
        """End this delivery; unless it is settled, the message is delivered again after ``wait`` seconds."""
        process.deliveries.pop(delivery.number, None)
        delivery.entry.give_back(delivery.number, self.elapsed + round(wait * SECOND))

    # -- the round trips of the heartbeat and the sweeper

    def renew(self, process: Process, batch: Sequence[Batchable]) -> Sequence[Reply]:
        """Execute a renewal, with the fault that the current move has chosen."""
        fault = process.heartbeat_fault
        if fault == "late":
            self.delayed.append(DelayedRequest("renewal", batch, lambda: self.apply(batch)))
            raise StoreUnavailable("the renewal was not answered")
        if fault == "slow" and self.run_others is not None:
            self.run_others()
        replies = self.apply(batch, process)
        process.record_event(tuple(replies))
        if fault == "mute":
            raise StoreUnavailable("the reply to the renewal was lost")
        if fault == "slow" and self.run_others is not None:
            self.run_others()
        return replies

    def sweep(self, limit: int = 500) -> SweepResult:
        swept: SweepResult = run_sync(self.port.sweep(limit))
        self.oracle.observe_sweep(self.now())
        self.swept_at_step = self.steps
        return swept


def _nothing() -> None:
    pass


def _describe_reply(op: Batchable, reply: object) -> str:
    """Describe an operation and the reply to it, for the timeline."""
    name = operation_name(op)
    if isinstance(reply, Answer):
        details = f", attempt {reply.attempts}, token …{reply.token % 10**9:09d}" if reply.kind == "claimed" else ""
        details += f", {reply.retry_after:g} s to go" if reply.kind == "in_progress" else ""
        return f"{name} {op.key}: {reply.kind}{details}"
    token = f" with token …{op.token % 10**9:09d}" if isinstance(op, Settlement) else ""
    return f"{name} {op.key}{token}: {'applied' if reply else 'refused'}"
