"""What each move does to the simulation. A move is a tuple: the name of an action here, and its arguments.

Moves name requests, deliveries and entries by number, so that a move means the same whenever a schedule is run again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, Literal

from effectonce.core.run_sync import run_sync
from effectonce.errors import StoreUnavailable
from effectonce.record import Resolution, SweepResult

from .scenario import LEASE, RETENTION, SECOND
from .simulation import Move, Process, SimulatedDelivery, Simulation
from .system import SCOPE, PermanentDecline, Transient
from .transport import DelayedRequest, SimulatedRequest

MAX_STEPS: Final = 1000
SPANS: Final = {"half": LEASE // 2, "lapse": LEASE, "age": LEASE + RETENTION}
JUMPS: Final = {"forward": 2 * LEASE, "back": -LEASE // 2}

_EXECUTED_TEXTS: Final = {
    "store": "its {} is executed",
    "effect": "its handler has its {}",
    "point": "its {} continues",
    "broker": "its {} reaches the broker",
    "memo": "its {} is executed",
    "sql": "its {} is executed",
    "call": "its {} reaches the provider",
    "publish": "its {} reaches the broker",
}
_FAULT_TEXTS: Final = {
    "lose": "the request never arrives",
    "late": "the request is still on its way when the caller gives it up",
    "mute": "the reply is lost",
}


def perform(simulation: Simulation, move: Move) -> None:
    """Perform one move, and check what must hold after every one."""
    simulation.steps += 1
    name, *arguments = move
    if name in FAULTS:
        simulation.faults += 1
        FAULTS[name](simulation, *arguments)
    else:
        FREE[name](simulation, *arguments)
    simulation.check_leases()
    if simulation.steps > MAX_STEPS:
        simulation.fail("wedged", f"no end after {MAX_STEPS} steps")


# -- free moves: what happens when nothing goes wrong


def deliver(simulation: Simulation, slot: int, number: int) -> None:
    """Deliver an entry to a worker."""
    process, entry = simulation.processes[slot], simulation.broker.entries[number]
    delivery = SimulatedDelivery(simulation.next_number(), entry)
    entry.take(delivery.number)
    process.deliveries[delivery.number] = delivery
    process.record_event((entry.key, simulation.elapsed))
    simulation.narrate(f"w{slot} gets message {number} ({entry.key}), delivery {entry.deliveries}")
    delivery.task = process.loop.create_task(simulation.system.work(simulation, process, delivery))
    simulation.run_process(process)


def execute(simulation: Simulation, number: int) -> None:
    """Execute a request, which arrives."""
    request = simulation.request(number)
    simulation.narrate(f"w{request.process.slot}: {_EXECUTED_TEXTS[request.kind].format(request.name)}")
    request.reply = request.apply()
    request.executed = True
    simulation.last_slot = request.process.slot


def answer(simulation: Simulation, number: int) -> None:
    """Deliver the reply to a request; the worker continues until it waits for something else."""
    simulation.run_process(_deliver_reply(simulation, number))


def _deliver_reply(simulation: Simulation, number: int) -> Process:
    request = simulation.request(number)
    process, reply = request.process, request.reply
    del process.requests[number]
    process.record_event((request.name, tuple(reply) if isinstance(reply, list) else reply))
    if not request.future.done():
        request.future.set_result(reply)
    return process


def execute_and_answer(simulation: Simulation, number: int) -> None:
    """Both at once: the reply is fixed when the request is executed, so that nothing needs to come between."""
    execute(simulation, number)
    answer(simulation, number)


def beat(simulation: Simulation, slot: int, fault: str = "") -> None:
    """Let the heartbeat of a process renew the leases that are due."""
    process = simulation.processes[slot]
    process.record_event(("beat", simulation.elapsed, fault))
    simulation.narrate(f"w{slot}: the heartbeat beats{fault and f' ({fault})'}")
    process.heartbeat_fault = fault
    process.runtime.heartbeat.beat()
    process.heartbeat_fault = ""


def sweep(simulation: Simulation) -> None:
    swept = simulation.sweep()
    simulation.narrate(f"the sweeper deletes {swept.deleted}, and moves {swept.lapsed} to in doubt")


def arrive(simulation: Simulation, index: int) -> None:
    """Execute a delayed request, whose sender has given it up, or is dead."""
    delayed_request = simulation.delayed.pop(index)
    simulation.narrate(f"a late {delayed_request.name} arrives")
    delayed_request.apply()


def timer(simulation: Simulation) -> None:
    """Let time pass to the next timer of a loop."""
    due = min(when for when in (process.loop.next_due() for process in simulation.processes) if when is not None)
    pass_time(simulation, max(1, math.ceil(due * 1e6) - simulation.elapsed))


def wait(simulation: Simulation) -> None:
    """Let time pass until the broker delivers again, when nothing else can happen."""
    due = simulation.broker.next_due()
    assert due is not None
    pass_time(simulation, due - simulation.elapsed)


def pass_time(simulation: Simulation, span: int) -> None:
    simulation.elapsed += span
    simulation.narrate(f"{span / 1e6:g} s have passed")
    for process in tuple(simulation.processes):
        when = process.loop.next_due()
        if when is not None and when <= simulation.elapsed / 1e6 + 1e-9:
            process.record_event(("timer", simulation.elapsed))
            simulation.fire(process)
            simulation.run_process(process)


def stay(simulation: Simulation) -> None:
    """Do nothing."""


# -- faults: `scenario.FAULTS` describes each


def _delay(simulation: Simulation, request: SimulatedRequest) -> None:
    until = simulation.elapsed + LEASE if request.kind == "call" else 1 << 62
    apply = (lambda: simulation.apply(request.ops)) if request.kind == "store" else request.apply
    simulation.delayed.append(DelayedRequest(request.name, request.ops, apply, until))
    request.transport.give_up()


def _fail(simulation: Simulation, number: int, fault: str, retry: bool) -> None:
    request = simulation.request(number)
    process = request.process
    simulation.blame(request)
    simulation.narrate(
        f"w{process.slot}: {request.name}: {_FAULT_TEXTS[fault]}{', so it is sent again' if retry else ''}"
    )
    del process.requests[number]
    process.record_event((request.name, fault, retry))
    request.future.set_exception(request.transport.error_when_lost(retry))
    simulation.run_process(process)


def lose(simulation: Simulation, number: int, retry: bool = False) -> None:
    _fail(simulation, number, "lose", retry)


def late(simulation: Simulation, number: int, retry: bool = False) -> None:
    _delay(simulation, simulation.request(number))
    _fail(simulation, number, "late", retry)


def mute(simulation: Simulation, number: int, retry: bool = False) -> None:
    if not simulation.request(number).executed:
        execute(simulation, number)
    _fail(simulation, number, "mute", retry)


def refuse(simulation: Simulation, number: int) -> None:
    request = simulation.request(number)
    process = request.process
    simulation.narrate(f"w{process.slot}: {request.name}: the store cannot hold the result")
    if process.cancelled:  # perhaps no caller is left to send it again without the result
        simulation.blame(request)
    del process.requests[number]
    process.record_event((request.name, "refused"))
    request.future.set_exception(ValueError("item too large"))
    simulation.run_process(process)
    if process.idle and "complete" in request.names:
        simulation.fail("unrepeated", f"{request.ops[0].key}: it happened, and w{process.slot} leaves that unrecorded")


def _crash_points(process: Process) -> list[str]:
    """Return the crash points that a process is at."""
    points = [
        f"{name}.{'after' if request.executed else 'before'}"
        for request in process.requests.values()
        for name in request.names
    ]
    return [*points, "wait"] if process.loop.timers or not points else points


def crash(simulation: Simulation, slot: int, late: bool = False) -> None:
    process = simulation.processes[slot]
    points = _crash_points(process)
    simulation.crash_points.update(points)
    simulation.narrate(f"w{slot} is killed at {' and '.join(points)}{', its request on the wire' * late}")
    for request in process.requests.values():
        if late and request.transport.lingers and not request.executed:
            _delay(simulation, request)
    simulation.kill(process)


def crash_after(simulation: Simulation, number: int) -> None:
    slot = simulation.request(number).process.slot
    execute(simulation, number)
    crash(simulation, slot)


def cancel(simulation: Simulation, slot: int, number: int) -> None:
    process = simulation.processes[slot]
    delivery = process.deliveries[number]
    delivery.cancelled = process.cancelled = True
    process.record_event(("cancel", delivery.entry.key))
    simulation.narrate(f"w{slot}: its task is cancelled at {' and '.join(_crash_points(process))}")
    assert delivery.task is not None
    delivery.task.cancel()
    process.forget_cancelled()
    simulation.run_process(process)


def cancel_after(simulation: Simulation, number: int, delivery: int) -> None:
    request = simulation.request(number)
    if not request.executed:
        execute(simulation, number)
    process = _deliver_reply(simulation, number)
    if request.kind == "store":  # one callback: the task that carries the reply hands it to the caller's future
        simulation.crank(process, 1)
    cancel(simulation, process.slot, delivery)


def stop(simulation: Simulation, slot: int) -> None:
    process = simulation.processes[slot]
    process.stopping = True
    process.record_event("stop")
    simulation.narrate(f"w{slot} is stopped")
    simulation.system.stop(simulation, process)
    simulation.run_process(process)


def throw(simulation: Simulation, number: int, permanent: bool = False) -> None:
    """Let the handler raise."""
    request = simulation.request(number)
    process = request.process
    error = PermanentDecline("declined") if permanent else Transient("try again")
    process.deliveries[request.of].handler_error = error
    if permanent:
        request.transport.deny()
    simulation.narrate(
        f"w{process.slot}: {'the provider says no' if request.kind == 'call' else f'the handler raises {error!r}'}"
    )
    del process.requests[number]
    process.record_event((request.name, repr(error)))
    request.future.set_exception(error)
    simulation.run_process(process)


def reject(simulation: Simulation, number: int) -> None:
    """Let the receiver of a request reject it."""
    request = simulation.request(number)
    process, error = request.process, request.transport.rejection()
    assert error is not None
    simulation.narrate(f"w{process.slot}: {request.name}: {error}")
    del process.requests[number]
    process.record_event((request.name, "rejected"))
    request.future.set_exception(error)
    simulation.run_process(process)


def elapse(simulation: Simulation, span: str) -> None:
    pass_time(simulation, SPANS[span])


def slow(simulation: Simulation) -> None:
    timer(simulation)


def jump(simulation: Simulation, where: str) -> None:
    simulation.offset += JUMPS[where]
    simulation.narrate(f"the store's clock jumps {where} by {abs(JUMPS[where]) / SECOND:g} s")


class _UnreachablePort:
    """The sweeper's connection to a store that does not answer."""

    async def sweep(self, limit: int) -> SweepResult:
        raise StoreUnavailable("no answer")


def sweep_broken(simulation: Simulation, slot: int) -> None:
    """Let the sweep of a process fail, which must emit an event."""
    simulation.sweep_has_failed = True
    simulation.narrate(f"w{slot}: the sweeper gets no answer from the store")
    runtime, events = simulation.processes[slot].runtime, [""]
    hooks = runtime.hooks
    runtime.hooks = (lambda event: events.append(event.kind),)
    try:
        runtime.heartbeat.sweep(_UnreachablePort())  # type: ignore[arg-type]
    finally:
        runtime.hooks = hooks
    if "sweep_failed" not in events:
        simulation.fail("silent", f"w{slot}: the sweep failed, and no event was emitted")


def redeliver(simulation: Simulation, number: int) -> None:
    entry = simulation.broker.entries[number]
    entry.ready, entry.not_before = True, simulation.elapsed
    simulation.narrate(f"the broker takes message {number} for lost, and will deliver it again")


def resolve(simulation: Simulation, key: str, state: Literal["done", "free", "failed"]) -> None:
    """Let the operator resolve a record in doubt; a message that was parked is delivered again."""
    result = b'1"operator"' if state == "done" else None
    simulation.narrate(f"the operator resolves {key}: {state}")
    if not run_sync(
        simulation.port.resolve(SCOPE, key, Resolution(state=state, retention_us=RETENTION, result=result))
    ):
        simulation.fail("wedged", f"{key}: in doubt, and the operator cannot resolve it")
    _decided(simulation, key, state, result)


def forget(simulation: Simulation, key: str) -> None:
    """Let the operator make the store forget a key, whatever its state."""
    simulation.narrate(f"the operator makes the store forget {key}")
    if run_sync(simulation.port.forget(SCOPE, key, RETENTION)):  # else it had expired
        _decided(simulation, key, "free", None)


def _decided(simulation: Simulation, key: str, state: str, result: bytes | None) -> None:
    simulation.oracle.observe_decision(key, state, result, simulation.now())
    for entry in simulation.broker.entries:
        if entry.key == key and entry.state == "parked":
            entry.state, entry.ready, entry.not_before = "open", True, simulation.elapsed


def beat_broken(simulation: Simulation, slot: int, fault: str) -> None:
    beat(simulation, slot, fault)


FREE: Final[dict[str, Callable[..., Any]]] = {
    action.__name__: action
    for action in (deliver, execute, answer, execute_and_answer, beat, sweep, arrive, timer, wait, stay)
}
FAULTS: Final[dict[str, Callable[..., Any]]] = {
    action.__name__: action
    for action in (
        lose,
        late,
        mute,
        refuse,
        crash,
        crash_after,
        cancel,
        cancel_after,
        throw,
        reject,
        slow,
        elapse,
        jump,
        sweep_broken,
        redeliver,
        resolve,
        forget,
        beat_broken,
        stop,
    )
}
