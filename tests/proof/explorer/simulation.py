"""The modelled world: processes, a store, a broker and a clock.

Nothing here decides anything: `moves` lists what may happen next, a search picks one, `steps` does it. The guard's own
code runs unchanged, on the real memory store; a killed process is never run again, and nothing of it is unwound.
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

EPOCH = 1_767_225_600_000_000
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
        self.raised: BaseException | None = None  # by the handler
        self.came_to: BaseException | None = None  # what the guarded call raised

    def __repr__(self) -> str:
        """What a worker can know of it."""
        return f"{self.entry.key}, delivery {self.entry.deliveries}"


class HandlerCall:
    """A handler that runs."""

    def __init__(
        self, process: Process, delivery: SimulatedDelivery, key: str, run: Run | None, grant: Grant | None
    ) -> None:
        self.process = process
        self.delivery = delivery
        self.key = key
        self.run = run
        self.grant = grant


class Process:
    """One worker process: its event loop, its store handle's runtime, and what it has in flight."""

    def __init__(self, simulation: Simulation, slot: int) -> None:
        self.slot = slot
        self.loop = SimulatedLoop(simulation.monotonic)
        self.loop.hop = self._in_thread
        self.requests: dict[int, SimulatedRequest] = {}
        self.deliveries: dict[int, SimulatedDelivery] = {}
        self.calls: list[HandlerCall] = []
        self.log: list[object] = []  # what it has been told since it was last idle: its state is a function of it
        self.owners: list[bytes] = []  # of the claims that it has sent since
        self.cancelled = False  # one of its tasks, since then
        self.stopping = False
        self.beat = ""  # how the heartbeat's round trip fares
        self.past = 0  # a hash of what it was told before that, where the system says that it remembers
        self.starting = False  # it checks what it needs before it consumes: no part of the schedule
        self._simulation = simulation
        self._wire: SimulatedStoreBackend | None = None
        self.store = Store(self._open, sweep_every=None)

    @property
    def runtime(self) -> StoreRuntime:
        """Opened with the first delivery. Its wall clock is wrong, one way or the other."""
        return self.store.runtime

    def _open(self) -> SimulatedStoreBackend:
        skew = (1, -1, 0)[self.slot % 3] * self._simulation.system.skew
        self._wire = SimulatedStoreBackend(self._simulation, self, skew)
        return self._wire

    def record_event(self, what: object) -> None:
        """Note what this process was told."""
        self.log.append((self._simulation.elapsed, what) if self._simulation.system.remembers else what)

    def forget_events(self) -> None:
        """It is idle: what it was told is over, unless it remembers."""
        if self._simulation.system.remembers:
            self.past = hash((self.past, repr(self.log)))
        self.log.clear()
        self.owners.clear()
        self.cancelled = False

    async def _in_thread(self, call: Callable[[], Any]) -> Any:
        simulation = self._simulation
        if self.starting:
            return call()

        def run() -> tuple[Any, Exception | None]:
            simulation.take_turn_of(self)
            try:
                return call(), None
            except Exception as error:
                return None, error

        name = getattr(getattr(call, "args", [call])[0], "__name__", "thread").strip("_")
        value, error = await simulation.memo(self, name, run)
        if error is not None:
            raise error
        return value

    @property
    def leased(self) -> Collection[Run]:
        """The runs that its heartbeat keeps."""
        return () if self._wire is None else self.runtime.leased_runs

    @property
    def idle(self) -> bool:
        requests = self.requests.values()
        return not self.deliveries and (not requests or all(request.transport.waits() for request in requests))

    def forget_cancelled(self) -> None:
        """What nobody waits for any more was never sent."""
        for request in [each for each in self.requests.values() if each.future.cancelled()]:
            del self.requests[request.number]

    def end(self) -> None:
        """Let go of what refers in a circle, so that a million schedules do not fill the memory."""
        self.loop.close()
        if self._wire is not None:
            self._wire.cut()
            self.runtime.__dict__.clear()  # a `Run` refers to it, and the collector does not look into those


class StoreClock:
    """The store's own time."""

    manual = True

    def __init__(self, simulation: Simulation) -> None:
        self.now = simulation.now
        self.monotonic = simulation.monotonic


class Simulation:
    """See the module. ``story`` collects, where it is a list, what happens in words."""

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
        self.free = 0  # of the moves that were last listed, those that are no faults
        self.deaf = False  # a sweep has failed before
        self.swept = 0  # the step of the last sweep
        self.violation: tuple[str, str] | None = None
        self.crash_points: set[str] = set()
        self.memory: set[str] = set()  # of the naive arms
        self.tally: dict[str, tuple[bool, int]] = {}  # of each key, when all was over: lost, and how often repeated
        self.over = False
        self.meanwhile: Callable[[], None] | None = None  # others go on while a heartbeat waits: a search says who
        self._rules = rules
        self._counter = 0
        self.backend = system.backend(clock=StoreClock(self))
        self.port = self.backend.sync_port()
        self.broker = SimulatedQueue(scenario.keys, scenario.copies)
        self.oracle = system.oracle(self)
        self.processes = [Process(self, slot) for slot in range(scenario.workers)]
        self.graveyard: list[Process] = []
        self.delayed: list[DelayedRequest] = []
        self.last = 0  # the process that had the last turn
        self.on: Process = self.processes[0]
        system.open(self)
        for process in self.processes:
            system.start_process(self, process)

    # -- time, verdict, words

    def now(self) -> int:
        """The store's clock."""
        return EPOCH + self.elapsed + self.offset

    def monotonic(self) -> float:
        return self.elapsed / 1e6

    def fail(self, rule: str, text: str) -> None:
        """The first violation is the verdict."""
        if self.violation is None and rule in self._rules and not self.over:
            self.narrate(f"VIOLATION ({rule}) {text}")
            self.violation = (rule, text)

    def narrate(self, text: str) -> None:
        """Goes into the story, which ends with the first violation."""
        if self.story is not None and self.violation is None:
            self.story.append(f"{self.elapsed / 1e6:9.3f}s  {text}")

    def number(self) -> int:
        self._counter += 1
        return self._counter

    # -- turns

    def turn(self, process: Process) -> None:
        """Let ``process`` run until it waits for something."""
        self.last = process.slot
        self.crank(process)
        if process.loop.complaints:
            self.fail("unexpected", process.loop.complaints[0])
        if process.idle and process.log:
            key = self.oracle.left(process.owners)
            if key is not None:
                self.fail("abandoned", f"{key}: w{process.slot} is idle, nothing broke, and its claim still stands")
            process.forget_events()

    def crank(self, process: Process, most: int = 1_000_000) -> None:
        self.take_turn_of(process)
        process.loop.crank(most)

    def fire(self, process: Process) -> None:
        """Run the timers of ``process`` that are due."""
        self.take_turn_of(process)
        process.loop.fire()

    def take_turn_of(self, process: Process) -> None:
        """It is ``process`` whose code runs from now on."""
        self.on = process
        self.system.enter(process)

    def look(self) -> None:
        """What must hold after every move: whoever is told that its lease holds has it."""
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
        """Kill ``process``: nothing of it ever runs again, and a new one takes its place."""
        self.oracle.blamed.update(process.owners)
        for call in process.calls:
            if call.grant is not None:
                call.grant.running = False
        for delivery in process.deliveries.values():
            delivery.entry.back(delivery.number, self.elapsed)
        self.system.process_died(self, process)
        self.replace(process)

    def replace(self, process: Process) -> None:
        """``process`` has ended, and a new one takes its place."""
        process.loop.closed = True
        self.graveyard.append(process)
        new = self.processes[process.slot] = Process(self, process.slot)
        self.system.start_process(self, new)

    def end(self) -> None:
        """Let go of everything: what is unwound from now on is only memory."""
        self.over = True
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
        """A fault has hit ``request``: the claims that it speaks of may be left standing."""
        for op in request.ops:
            owner = getattr(op, "owner", None)
            if owner is not None:
                self.oracle.blamed.add(owner)

    # -- what processes ask for

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
        request = SimulatedRequest(self.number(), process, kind, names, apply, ops, of, transport)
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
                    self.oracle.acked(entry.key)
                elif word == "dead" and not isinstance(delivery.came_to, PermanentDecline):
                    self.oracle.dead(entry.key)
            entry.settle(delivery.number, "acked" if word == "ack" else "parked" if word == "park" else "dead")

        return self.ask(process, "broker", (word,), settle)

    def memo(self, process: Process, name: str, apply: Callable[[], Any]) -> asyncio.Future[Any]:
        return self.ask(process, "memo", (name,), apply)

    def effect(self, call: HandlerCall, name: str) -> asyncio.Future[Any]:
        """The effect itself: it happens when the request is executed, whatever becomes of the reply."""

        def happen() -> str:
            count = self.oracle.history(call.key).effects + 1
            self.narrate(f"    {name} {call.key}: effect number {count}")
            if call.run is None:
                self.oracle.history(call.key).count_effect(0)  # of a naive arm, which is judged by its end
            else:
                self.oracle.effect(call.key, call.grant)
            return f"{name}-{call.key}-{count}"

        return self.ask(call.process, "effect", ("effect",), happen, of=call.delivery.number)

    def point(self, call: HandlerCall) -> asyncio.Future[Any]:
        """A point in the handler at which it may raise, be cancelled, or die."""
        return self.ask(call.process, "point", ("handler",), _nothing, of=call.delivery.number)

    def current_delivery(self) -> tuple[Process, SimulatedDelivery]:
        """The process whose turn it is, and the delivery whose task runs."""
        process = self.on
        task = asyncio.current_task()
        deliveries = list(process.deliveries.values())
        return process, next((each for each in deliveries if each.task is task), deliveries[0])

    def enter(self, key: str) -> HandlerCall:
        """A handler starts, in the process whose turn it is."""
        process, delivery = self.current_delivery()
        run = grant = None
        if not self.scenario.naive:
            run = current()
            if not self.scenario.seen:
                grant = self.oracle.grant(key, run.owner, run.token)
                self.oracle.started(key, grant, self.now())
                if run.lease_lost and grant is not None and not self.oracle.holds(key, grant, self.now()):
                    self.fail("late-start", f"{key}: w{process.slot} starts with a lease that has ended")
        call = HandlerCall(process, delivery, key, run, grant)
        process.calls.append(call)
        return call

    def leave(self, call: HandlerCall) -> None:
        if not self.over:
            call.process.calls.remove(call)

    def end_call(self, process: Process, delivery: SimulatedDelivery, failure: BaseException | None) -> None:
        """The guarded call came back."""
        delivery.inside = False
        delivery.came_to = failure
        cancelled = isinstance(failure, asyncio.CancelledError)
        known = cancelled or failure is delivery.raised or failure is None
        if delivery.cancelled and not cancelled:
            self.fail("cancel", f"w{process.slot}: cancelled, yet the call came to {failure!r}")
        elif delivery.raised is not None and not cancelled and failure is not delivery.raised:
            self.fail("error", f"w{process.slot}: the handler raised {delivery.raised!r}, the caller got {failure!r}")
        elif not known and not isinstance(failure, EffectOnceError | PermanentDecline):
            self.fail("unexpected", f"w{process.slot}: the call raised {failure!r}")
        self.narrate(f"  w{process.slot}: the guarded call {'returned' if failure is None else f'raised {failure!r}'}")

    def end_delivery(self, process: Process, delivery: SimulatedDelivery, wait: float) -> None:
        """The worker is done with this delivery; unless it is settled, it comes again after ``wait`` seconds."""
        process.deliveries.pop(delivery.number, None)
        delivery.entry.back(delivery.number, self.elapsed + round(wait * SECOND))

    # -- the heartbeat's round trip, and the sweeper's

    def renew(self, process: Process, batch: Sequence[Batchable]) -> Sequence[Reply]:
        """What comes of a renewal, as the move that beats has said."""
        how = process.beat
        if how == "late":
            self.delayed.append(DelayedRequest("renewal", batch, lambda: self.apply(batch)))
            raise StoreUnavailable("the renewal was not answered")
        if how == "slow" and self.meanwhile is not None:
            self.meanwhile()
        replies = self.apply(batch, process)
        process.record_event(tuple(replies))
        if how == "mute":
            raise StoreUnavailable("the reply to the renewal was lost")
        if how == "slow" and self.meanwhile is not None:
            self.meanwhile()
        return replies

    def sweep(self, limit: int = 500) -> SweepResult:
        swept: SweepResult = run_sync(self.port.sweep(limit))
        self.oracle.swept(self.now())
        self.swept = self.steps
        return swept


def _nothing() -> None:
    pass


def _describe_reply(op: Batchable, reply: object) -> str:
    """An operation and the reply to it, for the timeline."""
    name = operation_name(op)
    if isinstance(reply, Answer):
        more = f", attempt {reply.attempts}, token …{reply.token % 10**9:09d}" if reply.kind == "claimed" else ""
        more += f", {reply.retry_after:g} s to go" if reply.kind == "in_progress" else ""
        return f"{name} {op.key}: {reply.kind}{more}"
    token = f" with token …{op.token % 10**9:09d}" if isinstance(op, Settlement) else ""
    return f"{name} {op.key}{token}: {'applied' if reply else 'refused'}"
