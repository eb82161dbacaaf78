"""The moves that are possible next: first what happens without faults, then the faults that the scenario allows.

The order is part of every schedule, and position 0 is always the run in which nothing goes wrong: a list of zeros
is the plain course, and the other numbers in a schedule are the places where it departs from it.

Where a scenario is not ``fine``, moves that commute with all others are not interleaved: an effect and an ack touch
nothing that another process reads, and other processes see a handler's outcome only when it is recorded, so these moves
(and the faults on them) come before all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from .scenario import RETENTION
from .simulation import Move, Process, Simulation
from .transport import SimulatedRequest

#: The kinds of requests that go over a connection which can break.
CARRIED: Final = ("store", "sql", "call", "publish")


def moves(simulation: Simulation, budget: int = 1_000_000) -> list[Move]:
    """Return every possible move, with faults only while ``budget`` is left. None are left: the schedule has ended."""
    scenario = simulation.scenario
    allows_faults = budget > simulation.faults
    order = _processes_in_order(simulation)
    if not scenario.fine:
        for process in order:
            for request in process.requests.values():
                if _commutes(request, scenario.slow_handlers):
                    simulation.free_moves = 1
                    return [
                        ("execute_and_answer", request.number),
                        *(_faults_on_request(simulation, process, request) if allows_faults else ()),
                    ]
    free: list[Move] = []
    for process in order:
        for request in process.requests.values():
            if request.transport.is_blocked() and not request.executed:
                continue
            step = "answer" if request.executed else "execute" if scenario.fine else "execute_and_answer"
            free.append((step, request.number))
    free += _deliveries(simulation, order)
    if scenario.beats:
        free.extend(("beat", process.slot) for process in order if _beat_is_due(process))
    arrivals = [
        ("arrive", index)
        for index, delayed_request in enumerate(simulation.delayed)
        if simulation.elapsed < delayed_request.until
        and not (delayed_request.ops and simulation.system.transport(delayed_request.ops).is_blocked())
    ]
    free += _time(simulation, idle=not free and not (scenario.patient and arrivals))
    free += arrivals
    if _sweepable(simulation) or (
        scenario.fine and simulation.swept_at_step != simulation.steps and simulation.backend.scopes
    ):
        free.append(("sweep",))
    simulation.free_moves = len(free)
    if free and allows_faults:
        return list(dict.fromkeys([*free, *_faults(simulation, order)]))
    return free


def _processes_in_order(simulation: Simulation) -> list[Process]:
    """Return the processes, the one that ran last first."""
    return simulation.processes[simulation.last_slot :] + simulation.processes[: simulation.last_slot]


def _commutes(request: SimulatedRequest, slow_handlers: bool) -> bool:
    return (
        request.kind in ("effect", "broker")
        or request.transport.local
        or (request.kind == "point" and not slow_handlers)
    )


def _deliveries(simulation: Simulation, order: list[Process]) -> list[Move]:
    ready = [] if simulation.system.pulls else simulation.broker.list_ready(simulation.elapsed)
    if not ready:
        return []
    able = [process for process in order if len(process.deliveries) < simulation.scenario.tasks]
    # Workers with nothing in flight do not differ: one of them is enough.
    idle = [process for process in able if process.idle]
    able = [process for process in able if not process.idle] + idle[:1]
    return [("deliver", process.slot, entry.number) for process in able for entry in ready]


def _beat_is_due(process: Process) -> bool:
    return any(
        run.lease_requested_at + run.policy.lease_us * 0.25e-6 <= run.runtime.monotonic() for run in process.leased
    )


def _time(simulation: Simulation, idle: bool) -> list[Move]:
    if simulation.system.at_rest(simulation):
        return []
    due = simulation.broker.next_due() if idle else None
    if any(process.loop.timers for process in simulation.processes) and (idle or not simulation.scenario.patient):
        return [
            ("wait",) if due is not None and simulation.system.pulls and _comes_first(simulation, due) else ("timer",)
        ]
    return [("wait",)] if due is not None else []


def _comes_first(simulation: Simulation, due: int) -> bool:
    """Whether the broker's next delivery is due before the next timer: processes that fetch always have timers."""
    timers = (when for process in simulation.processes if (when := process.loop.next_due()) is not None)
    return simulation.elapsed < due < min(timers) * 1e6


def _sweepable(simulation: Simulation) -> bool:
    now = simulation.now()
    return any(
        row.is_expired(now) or (row.state == "claimed" and row.doubt_on_lapse and row.lease_until <= now)
        for rows in simulation.backend.scopes.values()
        for row in rows.values()
    )


# -- faults: each row of a table is one kind of fault and its moves; the order of the rows is the order of the moves.


def _faults(simulation: Simulation, order: list[Process]) -> Iterator[Move]:
    allowed = simulation.scenario.faults
    for process in order:
        for request in process.requests.values():
            yield from _faults_on_request(simulation, process, request)
        for kind, moves_of_process in PROCESS_FAULTS:
            if kind in allowed:
                yield from moves_of_process(process)
    for kind, moves_of_world in WORLD_FAULTS:
        if kind in allowed:
            yield from moves_of_world(simulation)
    for key, history in simulation.oracle.histories.items():
        if "resolve" in allowed and history.state == "in_doubt":
            yield from (("resolve", key, state) for state in ("free", "done", "failed"))
        if "forget" in allowed and history.state in ("claimed", "in_doubt", "done"):
            yield ("forget", key)
    for kind, moves_of_world in LAST_FAULTS:
        if kind in allowed:
            yield from moves_of_world(simulation)


def _crash_between_requests(process: Process) -> Iterator[Move]:
    if process.deliveries and not process.requests:
        yield ("crash", process.slot)


def _cancel_tasks(process: Process) -> Iterator[Move]:
    for delivery in _cancellable(process):
        yield ("cancel", process.slot, delivery)


def _stop_process(process: Process) -> Iterator[Move]:
    if process.deliveries and not process.stopping:
        yield ("stop", process.slot)


def _break_heartbeat(fault: str) -> Callable[[Process], Iterator[Move]]:
    def list_moves(process: Process) -> Iterator[Move]:
        if _beat_is_due(process):
            yield ("beat_broken", process.slot, fault)

    return list_moves


PROCESS_FAULTS: Final[tuple[tuple[str, Callable[[Process], Iterator[Move]]], ...]] = (
    ("crash", _crash_between_requests),
    ("cancel", _cancel_tasks),
    ("stop", _stop_process),
    ("beat-late", _break_heartbeat("late")),
    ("beat-mute", _break_heartbeat("mute")),
)


def _break_sweeper(simulation: Simulation) -> Iterator[Move]:
    if not simulation.sweep_has_failed and any(process.deliveries for process in simulation.processes):
        yield ("sweep_broken", simulation.last_slot)


def _let_request_time_out(simulation: Simulation) -> Iterator[Move]:
    if any(process.loop.timers and process.requests for process in simulation.processes):
        yield ("slow",)


def _let_time_pass(span: str) -> Callable[[Simulation], Iterator[Move]]:
    def list_moves(simulation: Simulation) -> Iterator[Move]:
        if _was_delivered(simulation):
            yield ("elapse", span)

    return list_moves


def _jump_store_clock(simulation: Simulation) -> Iterator[Move]:
    if _was_delivered(simulation) and not simulation.offset:
        yield ("jump", "forward")
        if simulation.elapsed < RETENTION:  # else expired records would be there again
            yield ("jump", "back")


WORLD_FAULTS: Final[tuple[tuple[str, Callable[[Simulation], Iterator[Move]]], ...]] = (
    ("sweep-fails", _break_sweeper),
    ("slow", _let_request_time_out),
    ("half", _let_time_pass("half")),
    ("lapse", _let_time_pass("lapse")),
    ("age", _let_time_pass("age")),
    ("jump", _jump_store_clock),
)


def _redeliver_entries(simulation: Simulation) -> Iterator[Move]:
    for entry in simulation.broker.entries:
        if entry.state == "open" and entry.held and not entry.ready:
            yield ("redeliver", entry.number)


def _slow_heartbeats(simulation: Simulation) -> Iterator[Move]:
    for process in _processes_in_order(simulation) if simulation.run_others is not None else ():
        if _beat_is_due(process):
            yield ("beat_broken", process.slot, "slow")


#: A slow heartbeat is the very last, since an exhaustive search knows no moves inside of it.
LAST_FAULTS: Final[tuple[tuple[str, Callable[[Simulation], Iterator[Move]]], ...]] = (
    ("redeliver", _redeliver_entries),
    ("beat-slow", _slow_heartbeats),
)


def _was_delivered(simulation: Simulation) -> bool:
    """Whether anything has been delivered: before that, time means nothing."""
    return any(entry.deliveries for entry in simulation.broker.entries)


def _cancellable(process: Process) -> list[int]:
    """Return the numbers of the deliveries whose task may be cancelled."""
    return [delivery.number for delivery in process.deliveries.values() if delivery.inside and not delivery.cancelled]


# -- faults that hit one request, and the process that waits for it


@dataclass(frozen=True)
class FaultTarget:
    """A request that a fault may hit, and the facts that decide which faults may."""

    process: Process
    request: SimulatedRequest
    fine: bool
    changes: bool  # executing it changes its receiver: if not, losing it and losing its reply are the same

    @property
    def number(self) -> int:
        return self.request.number

    @property
    def pending(self) -> bool:
        return not self.request.executed

    @property
    def carried(self) -> bool:
        """Whether it goes over a connection that can break."""
        return self.request.kind in CARRIED

    @property
    def losable(self) -> bool:
        return self.carried and not self.request.transport.local

    @property
    def lingers(self) -> bool:
        """Whether it may arrive after its caller has given it up."""
        return self.pending and self.request.transport.lingers

    @property
    def waits_for_others(self) -> bool:
        """Whether it cannot be executed now."""
        return self.pending and self.request.transport.is_blocked()

    @property
    def reply_comes_now(self) -> bool:
        """Whether there is a reply, or would be if it were executed now."""
        return not self.pending or (self.changes and not self.fine and not self.waits_for_others)

    @property
    def in_handler(self) -> bool:
        return self.request.kind in ("point", "effect")

    @property
    def commutes(self) -> bool:
        return self.request.kind == "effect" or self.request.transport.local

    def carries_result(self) -> bool:
        return any(getattr(op, "result", None) is not None for op in self.request.ops)

    def handler_cancellable(self) -> bool:
        of = self.request.of
        return bool(of) and not self.process.deliveries[of].cancelled


class RequestFault(NamedTuple):
    """One kind of fault, when it can hit a request, and its moves."""

    kind: str
    applies: Callable[[FaultTarget], bool]
    moves: Callable[[FaultTarget], list[Move]]


REQUEST_FAULTS: Final = (
    RequestFault("lose", lambda t: t.losable and t.pending, lambda t: [("lose", t.number, False)]),
    RequestFault("lose-retry", lambda t: t.losable and t.pending, lambda t: [("lose", t.number, True)]),
    RequestFault(
        "late",
        lambda t: t.losable and t.lingers and t.request.name != "look",
        lambda t: [("late", t.number, False)],
    ),
    RequestFault(
        "late-retry",
        lambda t: t.losable and t.lingers and t.request.name != "look",
        lambda t: [("late", t.number, True)],
    ),
    RequestFault("refuse", lambda t: t.losable and t.pending and t.carries_result(), lambda t: [("refuse", t.number)]),
    RequestFault("mute", lambda t: t.losable and t.reply_comes_now, lambda t: [("mute", t.number, False)]),
    RequestFault("mute-retry", lambda t: t.losable and t.reply_comes_now, lambda t: [("mute", t.number, True)]),
    RequestFault("raise", lambda t: t.in_handler, lambda t: [("throw", t.number)]),
    RequestFault("decline", lambda t: t.in_handler, lambda t: [("throw", t.number, True)]),
    RequestFault(
        "reject", lambda t: t.pending and t.request.transport.rejection() is not None, lambda t: [("reject", t.number)]
    ),
    RequestFault(
        "decline", lambda t: t.pending and t.request.transport.is_deniable(), lambda t: [("throw", t.number, True)]
    ),
    RequestFault("crash", lambda t: True, lambda t: [("crash", t.process.slot)]),
    RequestFault(
        "crash-late", lambda t: t.carried and t.changes and t.lingers, lambda t: [("crash", t.process.slot, True)]
    ),
    RequestFault(
        "crash-after",
        lambda t: (
            not t.waits_for_others and t.changes and not t.fine and (t.carried or t.request.kind in ("broker", "memo"))
        ),
        lambda t: [("crash_after", t.number)],
    ),
    RequestFault(
        "cancel-after",
        lambda t: not t.waits_for_others and t.carried and t.changes and (not t.pending or not t.fine),
        lambda t: [("cancel_after", t.number, delivery) for delivery in _cancellable(t.process)],
    ),
    RequestFault(
        "cancel",
        lambda t: not t.waits_for_others and t.commutes and not t.fine and t.handler_cancellable(),
        lambda t: [("cancel", t.process.slot, t.request.of)],
    ),
)


def _faults_on_request(simulation: Simulation, process: Process, request: SimulatedRequest) -> Iterator[Move]:
    allowed = simulation.scenario.faults
    if request.transport.awaits_work():
        return
    if request.future.done():  # its caller no longer waits
        if "crash" in allowed:
            yield ("crash", process.slot)
        return
    changes = request.kind != "store" or _changes_store(simulation, request)
    target = FaultTarget(process, request, simulation.scenario.fine, changes)
    for fault in REQUEST_FAULTS:
        if fault.kind in allowed and fault.applies(target):
            yield from fault.moves(target)


def _changes_store(simulation: Simulation, request: SimulatedRequest) -> bool:
    now = simulation.now()
    return any(simulation.oracle.would_change(op, now) for op in request.ops)
