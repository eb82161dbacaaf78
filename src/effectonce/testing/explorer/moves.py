"""What may happen next: first what happens by itself, then the faults that the scenario allows.

The order is part of every schedule, and position 0 is always the run in which nothing goes wrong: a list of zeros
is the plain course, and the numbers in a schedule are the places where it departs from it.

Where a scenario is not ``fine``, moves that commute with all others are not interleaved: an effect and an ack touch
nothing that another process reads, and what a handler comes to is seen by others only when it is recorded, so they
(and the faults on them) come before anything else.
"""

from __future__ import annotations

from typing import Final

from .scenario import RETENTION
from .wire import Request
from .world import Move, Process, World

#: What goes over a wire that can break.
CARRIED: Final = ("store", "sql", "call", "publish")


def moves(world: World, budget: int = 1_000_000) -> list[Move]:
    """Every move there is; faults only while ``budget`` is left. None: this schedule has ended."""
    scenario = world.scenario
    faulty = budget > world.faults
    order = world.processes[world.last :] + world.processes[: world.last]
    if not scenario.fine:
        for process in order:
            for request in process.requests.values():
                if _commutes(request, scenario.slow_handlers):
                    world.free = 1
                    return [("do", request.number), *(_hit(world, process, request) if faulty else ())]
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
        _faults(world, order, free)
        return list(dict.fromkeys(free))
    return free


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
    return any(run.sent_at + run.policy.lease * 0.25e-6 <= run.runtime.monotonic() for run in process.leased)


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
        row.is_expired(now) or (row.state == "claimed" and row.doubt_on_lapse and row.lease_until <= now)
        for rows in world.backend.scopes.values()
        for row in rows.values()
    )


def _faults(world: World, order: list[Process], found: list[Move]) -> None:
    allowed = world.scenario.faults
    for process in order:
        for request in process.requests.values():
            found += _hit(world, process, request)
        if process.deliveries and not process.requests and "crash" in allowed:
            found.append(("crash", process.slot))
        if "cancel" in allowed:
            found.extend(
                ("cancel", process.slot, each.number)
                for each in process.deliveries.values()
                if each.inside and not each.cancelled
            )
        if "stop" in allowed and process.deliveries and not process.stopping:
            found.append(("stop", process.slot))
        if _beat_is_due(process):
            found.extend(("beat_broken", process.slot, how) for how in ("late", "mute") if f"beat-{how}" in allowed)
    if "sweep-fails" in allowed and not world.deaf and any(process.deliveries for process in order):
        found.append(("sweep_broken", order[0].slot))
    if "slow" in allowed and any(process.loop.timers and process.requests for process in order):
        found.append(("slow",))
    if any(entry.deliveries for entry in world.broker.entries):
        found.extend(("elapse", span) for span in ("half", "lapse", "age") if span in allowed)
        if "jump" in allowed and not world.offset:
            found.append(("jump", "forward"))
            if world.elapsed < RETENTION:  # else what had expired would be there again
                found.append(("jump", "back"))
    for key, book in world.ledger.books.items():
        if "resolve" in allowed and book.state == "in_doubt":
            found.extend(("resolve", key, state) for state in ("free", "done", "failed"))
        if "forget" in allowed and book.state in ("claimed", "in_doubt", "done"):
            found.append(("forget", key))
    if "redeliver" in allowed:
        found.extend(
            ("redeliver", entry.number)
            for entry in world.broker.entries
            if entry.state == "open" and entry.held and not entry.ready
        )
    if "beat-slow" in allowed and world.meanwhile is not None:  # last, since an exhaustive search knows no inner moves
        found.extend(("beat_broken", process.slot, "slow") for process in order if _beat_is_due(process))


def _hit(world: World, process: Process, request: Request) -> list[Move]:
    """The faults that can hit one request, and the process that waits for it."""
    allowed, fine = world.scenario.faults, world.scenario.fine
    number, kind = request.number, request.kind
    if request.ties.waits():
        return []
    if request.future.done():  # its caller waits no longer
        return [("crash", process.slot)] if "crash" in allowed else []
    changes = kind != "store" or _changes(world, request)
    found: list[Move] = []
    if kind in CARRIED and not request.ties.local:
        blocked = request.ties.blocked()
        if not request.executed:
            found.extend(("lose", number, retry) for retry in _retries(allowed, "lose"))
            if request.name != "look" and request.ties.lingers:
                found.extend(("late", number, retry) for retry in _retries(allowed, "late"))
            if "refuse" in allowed and any(getattr(op, "result", None) is not None for op in request.ops):
                found.append(("refuse", number))
        if request.executed or (changes and not fine and not blocked):
            found.extend(("mute", number, retry) for retry in _retries(allowed, "mute"))
    elif kind in ("point", "effect"):
        if "raise" in allowed:
            found.append(("throw", number))
        if "decline" in allowed:
            found.append(("throw", number, True))
    if "reject" in allowed and not request.executed and request.ties.refused() is not None:
        found.append(("reject", number))
    if "decline" in allowed and not request.executed and request.ties.deniable():
        found.append(("throw", number, True))
    if "crash" in allowed:
        found.append(("crash", process.slot))
        if kind in CARRIED and changes and not request.executed and request.ties.lingers and "crash-late" in allowed:
            found.append(("crash", process.slot, True))
    if request.ties.blocked() and not request.executed:
        return found
    if "crash-after" in allowed and not fine and changes and kind in ("store", "broker", "memo", *CARRIED):
        found.append(("crash_after", number))
    if "cancel-after" in allowed and kind in CARRIED and changes and (request.executed or not fine):
        found.extend(
            ("cancel_after", number, each.number)
            for each in process.deliveries.values()
            if each.inside and not each.cancelled
        )
    commutes = kind == "effect" or request.ties.local
    if commutes and request.of and not fine and "cancel" in allowed and not process.deliveries[request.of].cancelled:
        found.append(("cancel", process.slot, request.of))
    return found


def _changes(world: World, request: Request) -> bool:
    """Whether executing ``request`` now changes the store: if not, losing it and losing its reply are one."""
    now = world.now()
    return any(world.ledger.changes(op, now) for op in request.ops)


def _retries(allowed: frozenset[str], fault: str) -> list[bool]:
    return [retry for retry, name in ((False, fault), (True, f"{fault}-retry")) if name in allowed]
