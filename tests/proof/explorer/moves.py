"""What may happen next: first what happens by itself, then the faults that the scenario allows.

The order is part of every schedule, and position 0 is always the run in which nothing goes wrong: a list of zeros
is the plain course, and the numbers in a schedule are the places where it departs from it.

Where a scenario is not ``fine``, moves that commute with all others are not interleaved: an effect and an ack touch
nothing that another process reads, and what a handler comes to is seen by others only when it is recorded, so they
(and the faults on them) come before anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from .scenario import RETENTION
from .wire import Request
from .world import Move, Process, World

#: What goes over a wire that can break.
CARRIED: Final = ("store", "sql", "call", "publish")


def moves(world: World, budget: int = 1_000_000) -> list[Move]:
    """Every move there is; faults only while ``budget`` is left. None: this schedule has ended."""
    scenario = world.scenario
    faulty = budget > world.faults
    order = _in_order(world)
    if not scenario.fine:
        for process in order:
            for request in process.requests.values():
                if _commutes(request, scenario.slow_handlers):
                    world.free = 1
                    return [("do", request.number), *(_faults_on_request(world, process, request) if faulty else ())]
    free: list[Move] = []
    for process in order:
        for request in process.requests.values():
            if request.ties.blocked() and not request.executed:
                continue
            step = "answer" if request.executed else "execute" if scenario.fine else "do"
            free.append((step, request.number))
    free += _deliveries(world, order)
    if scenario.beats:
        free.extend(("beat", process.slot) for process in order if _beat_is_due(process))
    arrivals = [
        ("arrive", at)
        for at, stray in enumerate(world.strays)
        if world.elapsed < stray.until and not (stray.ops and world.stage.ties(stray.ops).blocked())
    ]
    free += _time(world, idle=not free and not (scenario.patient and arrivals))
    free += arrivals
    if _sweepable(world) or (scenario.fine and world.swept != world.steps and world.backend.scopes):
        free.append(("sweep",))
    world.free = len(free)
    if free and faulty:
        return list(dict.fromkeys([*free, *_faults(world, order)]))
    return free


def _in_order(world: World) -> list[Process]:
    """The process that had the last turn comes first."""
    return world.processes[world.last :] + world.processes[: world.last]


def _commutes(request: Request, slow_handlers: bool) -> bool:
    return request.kind in ("effect", "broker") or request.ties.local or (request.kind == "point" and not slow_handlers)


def _deliveries(world: World, order: list[Process]) -> list[Move]:
    ready = [] if world.stage.pulls else world.broker.ready(world.elapsed)
    if not ready:
        return []
    able = [process for process in order if len(process.deliveries) < world.scenario.tasks]
    # Workers with nothing in flight differ in nothing: one of them will do.
    blank = [process for process in able if process.idle]
    able = [process for process in able if not process.idle] + blank[:1]
    return [("deliver", process.slot, entry.number) for process in able for entry in ready]


def _beat_is_due(process: Process) -> bool:
    return any(run.sent_at + run.policy.lease * 0.25e-6 <= run.engine.monotonic() for run in process.leased)


def _time(world: World, idle: bool) -> list[Move]:
    if world.stage.at_rest(world):
        return []
    due = world.broker.next_due() if idle else None
    if any(process.loop.timers for process in world.processes) and (idle or not world.scenario.patient):
        return [("wait",) if due is not None and world.stage.pulls and _comes_first(world, due) else ("timer",)]
    return [("wait",)] if due is not None else []


def _comes_first(world: World, due: int) -> bool:
    """Whether what the broker has comes before the next timer: those that fetch for themselves have timers always."""
    timers = (when for process in world.processes if (when := process.loop.due()) is not None)
    return world.elapsed < due < min(timers) * 1e6


def _sweepable(world: World) -> bool:
    now = world.now()
    return any(
        row.expires_at <= now or (row.state == "claimed" and row.doubt_on_lapse and row.lease_until <= now)
        for rows in world.backend.scopes.values()
        for row in rows.values()
    )


# -- faults: what may go wrong now. Each row of a table is one kind of fault, and the moves that it gives; the order of
# -- the rows is the order of the moves.


def _faults(world: World, order: list[Process]) -> Iterator[Move]:
    allowed = world.scenario.faults
    for process in order:
        for request in process.requests.values():
            yield from _faults_on_request(world, process, request)
        for kind, moves_of_process in PROCESS_FAULTS:
            if kind in allowed:
                yield from moves_of_process(process)
    for kind, moves_of_world in WORLD_FAULTS:
        if kind in allowed:
            yield from moves_of_world(world)
    for key, book in world.ledger.books.items():
        if "resolve" in allowed and book.state == "in_doubt":
            yield from (("resolve", key, state) for state in ("free", "done", "failed"))
        if "forget" in allowed and book.state in ("claimed", "in_doubt", "done"):
            yield ("forget", key)
    for kind, moves_of_world in LAST_FAULTS:
        if kind in allowed:
            yield from moves_of_world(world)


def _crash_between_requests(process: Process) -> Iterator[Move]:
    if process.deliveries and not process.requests:
        yield ("crash", process.slot)


def _cancel_tasks(process: Process) -> Iterator[Move]:
    for delivery in _cancellable(process):
        yield ("cancel", process.slot, delivery)


def _stop_process(process: Process) -> Iterator[Move]:
    if process.deliveries and not process.stopping:
        yield ("stop", process.slot)


def _break_heartbeat(how: str) -> Callable[[Process], Iterator[Move]]:
    def list_moves(process: Process) -> Iterator[Move]:
        if _beat_is_due(process):
            yield ("beat_broken", process.slot, how)

    return list_moves


PROCESS_FAULTS: Final[tuple[tuple[str, Callable[[Process], Iterator[Move]]], ...]] = (
    ("crash", _crash_between_requests),
    ("cancel", _cancel_tasks),
    ("stop", _stop_process),
    ("beat-late", _break_heartbeat("late")),
    ("beat-mute", _break_heartbeat("mute")),
)


def _break_sweeper(world: World) -> Iterator[Move]:
    if not world.deaf and any(process.deliveries for process in world.processes):
        yield ("sweep_broken", world.last)


def _let_request_time_out(world: World) -> Iterator[Move]:
    if any(process.loop.timers and process.requests for process in world.processes):
        yield ("slow",)


def _let_time_pass(span: str) -> Callable[[World], Iterator[Move]]:
    def list_moves(world: World) -> Iterator[Move]:
        if _was_delivered(world):
            yield ("elapse", span)

    return list_moves


def _jump_store_clock(world: World) -> Iterator[Move]:
    if _was_delivered(world) and not world.offset:
        yield ("jump", "forward")
        if world.elapsed < RETENTION:  # else what had expired would be there again
            yield ("jump", "back")


WORLD_FAULTS: Final[tuple[tuple[str, Callable[[World], Iterator[Move]]], ...]] = (
    ("sweep-fails", _break_sweeper),
    ("slow", _let_request_time_out),
    ("half", _let_time_pass("half")),
    ("lapse", _let_time_pass("lapse")),
    ("age", _let_time_pass("age")),
    ("jump", _jump_store_clock),
)


def _redeliver_entries(world: World) -> Iterator[Move]:
    for entry in world.broker.entries:
        if entry.state == "open" and entry.held and not entry.ready:
            yield ("redeliver", entry.number)


def _slow_heartbeats(world: World) -> Iterator[Move]:
    for process in _in_order(world) if world.meanwhile is not None else ():
        if _beat_is_due(process):
            yield ("beat_broken", process.slot, "slow")


#: A slow heartbeat is the very last, since an exhaustive search knows no moves inside of it.
LAST_FAULTS: Final[tuple[tuple[str, Callable[[World], Iterator[Move]]], ...]] = (
    ("redeliver", _redeliver_entries),
    ("beat-slow", _slow_heartbeats),
)


def _was_delivered(world: World) -> bool:
    """Whether anything has been delivered: before that, time means nothing."""
    return any(entry.deliveries for entry in world.broker.entries)


def _cancellable(process: Process) -> list[int]:
    """The deliveries whose task may be cancelled."""
    return [each.number for each in process.deliveries.values() if each.inside and not each.cancelled]


# -- faults that hit one request, and the process that waits for it


@dataclass(frozen=True)
class Target:
    """A request that a fault may hit, and what decides which ones may."""

    process: Process
    request: Request
    fine: bool
    changes: bool  # executing it changes what it is sent to: if not, losing it and losing its reply are one

    @property
    def number(self) -> int:
        return self.request.number

    @property
    def pending(self) -> bool:
        return not self.request.executed

    @property
    def carried(self) -> bool:
        """Whether it goes over a wire that can break."""
        return self.request.kind in CARRIED

    @property
    def losable(self) -> bool:
        return self.carried and not self.request.ties.local

    @property
    def lingers(self) -> bool:
        """Whether it may arrive when its caller has given it up."""
        return self.pending and self.request.ties.lingers

    @property
    def waits_for_others(self) -> bool:
        """Whether it cannot be executed now."""
        return self.pending and self.request.ties.blocked()

    @property
    def reply_comes_now(self) -> bool:
        """Whether there is a reply, or would be if it were executed now."""
        return not self.pending or (self.changes and not self.fine and not self.waits_for_others)

    @property
    def in_handler(self) -> bool:
        return self.request.kind in ("point", "effect")

    @property
    def commutes(self) -> bool:
        return self.request.kind == "effect" or self.request.ties.local

    def carries_result(self) -> bool:
        return any(getattr(op, "result", None) is not None for op in self.request.ops)

    def handler_cancellable(self) -> bool:
        of = self.request.of
        return bool(of) and not self.process.deliveries[of].cancelled


class RequestFault(NamedTuple):
    """One kind of fault, when it can hit a request, and the moves that it gives."""

    kind: str
    applies: Callable[[Target], bool]
    moves: Callable[[Target], list[Move]]


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
        "reject", lambda t: t.pending and t.request.ties.refused() is not None, lambda t: [("reject", t.number)]
    ),
    RequestFault("decline", lambda t: t.pending and t.request.ties.deniable(), lambda t: [("throw", t.number, True)]),
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
        lambda t: [("cancel_after", t.number, each) for each in _cancellable(t.process)],
    ),
    RequestFault(
        "cancel",
        lambda t: not t.waits_for_others and t.commutes and not t.fine and t.handler_cancellable(),
        lambda t: [("cancel", t.process.slot, t.request.of)],
    ),
)


def _faults_on_request(world: World, process: Process, request: Request) -> Iterator[Move]:
    allowed = world.scenario.faults
    if request.ties.waits():
        return
    if request.future.done():  # its caller waits no longer
        if "crash" in allowed:
            yield ("crash", process.slot)
        return
    changes = request.kind != "store" or _changes_store(world, request)
    target = Target(process, request, world.scenario.fine, changes)
    for fault in REQUEST_FAULTS:
        if fault.kind in allowed and fault.applies(target):
            yield from fault.moves(target)


def _changes_store(world: World, request: Request) -> bool:
    now = world.now()
    return any(world.ledger.changes(op, now) for op in request.ops)
