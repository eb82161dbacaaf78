"""What each move does to the world. A move is a tuple: the name of a step here, and its arguments.

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

MOST_STEPS: Final = 400
SPANS: Final = {"half": LEASE // 2, "lapse": LEASE, "age": LEASE + RETENTION}
JUMPS: Final = {"forward": 2 * LEASE, "back": -LEASE // 2}

_DONE: Final = {
    "store": "its {} is executed",
    "effect": "its handler has its {}",
    "point": "its {} goes on",
    "broker": "its {} reaches the broker",
    "memo": "its {} is executed",
    "sql": "its {} is executed",
    "call": "its {} reaches the provider",
    "publish": "its {} reaches the broker",
}
_BROKEN: Final = {
    "lose": "the request never arrives",
    "late": "the request is still on its way when the caller gives it up",
    "mute": "the reply is lost",
}


def perform(simulation: Simulation, move: Move) -> None:
    """Do one move, and look at what must hold after every one."""
    simulation.steps += 1
    name, *arguments = move
    if name in FAULTS:
        simulation.faults += 1
        FAULTS[name](simulation, *arguments)
    else:
        FREE[name](simulation, *arguments)
    simulation.look()
    if simulation.steps > MOST_STEPS:
        simulation.fail("wedged", f"no end after {MOST_STEPS} steps")


# -- free: what happens when nothing goes wrong


def deliver(simulation: Simulation, slot: int, number: int) -> None:
    """The broker hands an entry to a worker."""
    process, entry = simulation.processes[slot], simulation.broker.entries[number]
    delivery = SimulatedDelivery(simulation.number(), entry)
    entry.taken(delivery.number)
    process.deliveries[delivery.number] = delivery
    process.record_event((entry.key, simulation.elapsed))
    simulation.narrate(f"w{slot} gets message {number} ({entry.key}), delivery {entry.deliveries}")
    delivery.task = process.loop.create_task(simulation.system.work(simulation, process, delivery))
    simulation.turn(process)


def execute(simulation: Simulation, number: int) -> None:
    """A request arrives, and is done."""
    request = simulation.request(number)
    simulation.narrate(f"w{request.process.slot}: {_DONE[request.kind].format(request.name)}")
    request.reply = request.apply()
    request.executed = True
    simulation.last = request.process.slot


def answer(simulation: Simulation, number: int) -> None:
    """Its reply arrives; the worker goes on until it waits for something else."""
    simulation.turn(_hand_over(simulation, number))


def _hand_over(simulation: Simulation, number: int) -> Process:
    request = simulation.request(number)
    process, reply = request.process, request.reply
    del process.requests[number]
    process.record_event((request.name, tuple(reply) if isinstance(reply, list) else reply))
    if not request.future.done():
        request.future.set_result(reply)
    return process


def do(simulation: Simulation, number: int) -> None:
    """Both at once: what a reply says is settled when the request is executed, so that nothing can come between."""
    execute(simulation, number)
    answer(simulation, number)


def beat(simulation: Simulation, slot: int, how: str = "") -> None:
    """The heartbeat of a process renews what is due."""
    process = simulation.processes[slot]
    process.record_event(("beat", simulation.elapsed, how))
    simulation.narrate(f"w{slot}: the heartbeat beats{how and f' ({how})'}")
    process.beat = how
    process.runtime.heartbeat.beat()
    process.beat = ""


def sweep(simulation: Simulation) -> None:
    swept = simulation.sweep()
    simulation.narrate(f"the sweeper deletes {swept.deleted}, and moves {swept.lapsed} to in doubt")


def arrive(simulation: Simulation, at: int) -> None:
    """A request arrives whose sender has given it up, or is dead."""
    delayed_request = simulation.delayed.pop(at)
    simulation.narrate(f"a late {delayed_request.name} arrives")
    delayed_request.apply()


def timer(simulation: Simulation) -> None:
    """Time passes to the next timer of a loop."""
    due = min(when for when in (process.loop.due() for process in simulation.processes) if when is not None)
    spend(simulation, max(1, math.ceil(due * 1e6) - simulation.elapsed))


def wait(simulation: Simulation) -> None:
    """Nothing else can happen: time passes until the broker delivers again."""
    due = simulation.broker.next_due()
    assert due is not None
    spend(simulation, due - simulation.elapsed)


def spend(simulation: Simulation, span: int) -> None:
    simulation.elapsed += span
    simulation.narrate(f"{span / 1e6:g} s have passed")
    for process in tuple(simulation.processes):
        when = process.loop.due()
        if when is not None and when <= simulation.elapsed / 1e6 + 1e-9:
            process.record_event(("timer", simulation.elapsed))
            simulation.fire(process)
            simulation.turn(process)


def stay(simulation: Simulation) -> None:
    """Nothing."""


# -- faults: what each means is said in `scenario.FAULTS`


def _delay(simulation: Simulation, request: SimulatedRequest) -> None:
    until = simulation.elapsed + LEASE if request.kind == "call" else 1 << 62
    apply = (lambda: simulation.apply(request.ops)) if request.kind == "store" else request.apply
    simulation.delayed.append(DelayedRequest(request.name, request.ops, apply, until))
    request.transport.late()


def _fail(simulation: Simulation, number: int, how: str, retry: bool) -> None:
    request = simulation.request(number)
    process = request.process
    simulation.blame(request)
    simulation.narrate(f"w{process.slot}: {request.name}: {_BROKEN[how]}{', so it is sent again' if retry else ''}")
    del process.requests[number]
    process.record_event((request.name, how, retry))
    request.future.set_exception(request.transport.broken(retry))
    simulation.turn(process)


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
    if process.cancelled:  # nobody may be there any more to send it again without
        simulation.blame(request)
    del process.requests[number]
    process.record_event((request.name, "refused"))
    request.future.set_exception(ValueError("item too large"))
    simulation.turn(process)
    if process.idle and "complete" in request.names:
        simulation.fail("unrepeated", f"{request.ops[0].key}: it happened, and w{process.slot} leaves that unrecorded")


def _points(process: Process) -> list[str]:
    """The crash points that a process is at."""
    found = [
        f"{name}.{'after' if request.executed else 'before'}"
        for request in process.requests.values()
        for name in request.names
    ]
    return [*found, "wait"] if process.loop.timers or not found else found


def crash(simulation: Simulation, slot: int, late: bool = False) -> None:
    process = simulation.processes[slot]
    points = _points(process)
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
    simulation.narrate(f"w{slot}: its task is cancelled at {' and '.join(_points(process))}")
    assert delivery.task is not None
    delivery.task.cancel()
    process.forget_cancelled()
    simulation.turn(process)


def cancel_after(simulation: Simulation, number: int, delivery: int) -> None:
    request = simulation.request(number)
    if not request.executed:
        execute(simulation, number)
    process = _hand_over(simulation, number)
    if request.kind == "store":  # one callback: the task that carries the reply hands it to the caller's future
        simulation.crank(process, 1)
    cancel(simulation, process.slot, delivery)


def stop(simulation: Simulation, slot: int) -> None:
    process = simulation.processes[slot]
    process.stopping = True
    process.record_event("stop")
    simulation.narrate(f"w{slot} is told to stop")
    simulation.system.stop(simulation, process)
    simulation.turn(process)


def throw(simulation: Simulation, number: int, permanent: bool = False) -> None:
    """The handler raises."""
    request = simulation.request(number)
    process = request.process
    error = PermanentDecline("declined") if permanent else Transient("try again")
    process.deliveries[request.of].raised = error
    if permanent:
        request.transport.deny()
    simulation.narrate(
        f"w{process.slot}: {'the provider says no' if request.kind == 'call' else f'the handler raises {error!r}'}"
    )
    del process.requests[number]
    process.record_event((request.name, repr(error)))
    request.future.set_exception(error)
    simulation.turn(process)


def reject(simulation: Simulation, number: int) -> None:
    """What it was sent to turns it away."""
    request = simulation.request(number)
    process, error = request.process, request.transport.refused()
    assert error is not None
    simulation.narrate(f"w{process.slot}: {request.name}: {error}")
    del process.requests[number]
    process.record_event((request.name, "rejected"))
    request.future.set_exception(error)
    simulation.turn(process)


def elapse(simulation: Simulation, span: str) -> None:
    spend(simulation, SPANS[span])


def slow(simulation: Simulation) -> None:
    timer(simulation)


def jump(simulation: Simulation, where: str) -> None:
    simulation.offset += JUMPS[where]
    simulation.narrate(f"the store's clock jumps {where} by {abs(JUMPS[where]) / SECOND:g} s")


class _Away:
    """The sweeper's connection to a store that does not answer."""

    async def sweep(self, limit: int) -> SweepResult:
        raise StoreUnavailable("no answer")


def sweep_broken(simulation: Simulation, slot: int) -> None:
    """The sweep of a process fails, which somebody has to be told."""
    simulation.deaf = True
    simulation.narrate(f"w{slot}: the sweeper gets no answer from the store")
    engine, told = simulation.processes[slot].runtime, [""]
    hooks = engine.hooks
    engine.set_hooks((lambda event: told.append(event.kind),))
    try:
        engine.heartbeat.sweep(_Away())  # type: ignore[arg-type]
    finally:
        engine.set_hooks(hooks)
    if "sweep_failed" not in told:
        simulation.fail("silent", f"w{slot}: the sweep failed, and nobody was told")


def redeliver(simulation: Simulation, number: int) -> None:
    entry = simulation.broker.entries[number]
    entry.ready, entry.not_before = True, simulation.elapsed
    simulation.narrate(f"the broker takes message {number} for lost, and will deliver it again")


def resolve(simulation: Simulation, key: str, state: Literal["done", "free", "failed"]) -> None:
    """The operator decides what is in doubt; a message that was parked is delivered again."""
    result = b'1"operator"' if state == "done" else None
    simulation.narrate(f"the operator resolves {key}: {state}")
    if not run_sync(simulation.port.resolve(SCOPE, key, Resolution(state=state, retention=RETENTION, result=result))):
        simulation.fail("wedged", f"{key}: in doubt, and the operator cannot resolve it")
    _decided(simulation, key, state, result)


def forget(simulation: Simulation, key: str) -> None:
    """The operator lets a key start anew, whatever has become of it."""
    simulation.narrate(f"the operator makes the store forget {key}")
    if run_sync(simulation.port.forget(SCOPE, key, RETENTION)):  # else it had expired
        _decided(simulation, key, "free", None)


def _decided(simulation: Simulation, key: str, state: str, result: bytes | None) -> None:
    simulation.oracle.decided(key, state, result, simulation.now())
    for entry in simulation.broker.entries:
        if entry.key == key and entry.state == "parked":
            entry.state, entry.ready, entry.not_before = "open", True, simulation.elapsed


def beat_broken(simulation: Simulation, slot: int, how: str) -> None:
    beat(simulation, slot, how)


FREE: Final[dict[str, Callable[..., Any]]] = {
    step.__name__: step for step in (deliver, execute, answer, do, beat, sweep, arrive, timer, wait, stay)
}
FAULTS: Final[dict[str, Callable[..., Any]]] = {
    step.__name__: step
    for step in (
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
