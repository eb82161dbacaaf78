"""What each move does to the world. A move is a tuple: the name of a step here, and its arguments.

Moves name requests, deliveries and entries by number, so that a move means the same whenever a schedule is run again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, Literal

from effectonce.core.run_sync import run_sync
from effectonce.errors import StoreUnavailable
from effectonce.record import Resolution, Swept

from .scenario import LEASE, RETENTION, SECOND
from .stage import SCOPE, Declined, Transient
from .wire import Request, Stray
from .world import Delivery, Move, Process, World

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


def perform(world: World, move: Move) -> None:
    """Do one move, and look at what must hold after every one."""
    world.steps += 1
    name, *arguments = move
    if name in FAULTS:
        world.faults += 1
        FAULTS[name](world, *arguments)
    else:
        FREE[name](world, *arguments)
    world.look()
    if world.steps > MOST_STEPS:
        world.fail("wedged", f"no end after {MOST_STEPS} steps")


# -- free: what happens when nothing goes wrong


def deliver(world: World, slot: int, number: int) -> None:
    """The broker hands an entry to a worker."""
    process, entry = world.processes[slot], world.broker.entries[number]
    delivery = Delivery(world.number(), entry)
    entry.taken(delivery.number)
    process.deliveries[delivery.number] = delivery
    process.log.append((entry.key, world.elapsed))
    world.tell(f"w{slot} gets message {number} ({entry.key}), delivery {entry.deliveries}")
    delivery.task = process.loop.create_task(world.stage.work(world, process, delivery))
    world.turn(process)


def execute(world: World, number: int) -> None:
    """A request arrives, and is done."""
    request = world.request(number)
    world.tell(f"w{request.process.slot}: {_DONE[request.kind].format(request.name)}")
    request.reply = request.apply()
    request.executed = True
    world.last = request.process.slot


def answer(world: World, number: int) -> None:
    """Its reply arrives; the worker goes on until it waits for something else."""
    world.turn(_hand_over(world, number))


def _hand_over(world: World, number: int) -> Process:
    request = world.request(number)
    process, reply = request.process, request.reply
    del process.requests[number]
    process.log.append((request.name, tuple(reply) if isinstance(reply, list) else reply))
    if not request.future.done():
        request.future.set_result(reply)
    return process


def do(world: World, number: int) -> None:
    """Both at once: what a reply says is settled when the request is executed, so that nothing can come between."""
    execute(world, number)
    answer(world, number)


def beat(world: World, slot: int, how: str = "") -> None:
    """The heartbeat of a process renews what is due."""
    process = world.processes[slot]
    process.log.append(("beat", world.elapsed, how))
    world.tell(f"w{slot}: the heartbeat beats{how and f' ({how})'}")
    process.beat = how
    process.runtime.heartbeat.beat()
    process.beat = ""


def sweep(world: World) -> None:
    swept = world.sweep()
    world.tell(f"the sweeper deletes {swept.deleted}, and moves {swept.lapsed} to in doubt")


def arrive(world: World, at: int) -> None:
    """A request arrives whose sender has given it up, or is dead."""
    stray = world.strays.pop(at)
    world.tell(f"a late {stray.name} arrives")
    stray.apply()


def timer(world: World) -> None:
    """Time passes to the next timer of a loop."""
    due = min(when for when in (process.loop.due() for process in world.processes) if when is not None)
    spend(world, max(1, math.ceil(due * 1e6) - world.elapsed))


def wait(world: World) -> None:
    """Nothing else can happen: time passes until the broker delivers again."""
    due = world.broker.next_due()
    assert due is not None
    spend(world, due - world.elapsed)


def spend(world: World, span: int) -> None:
    world.elapsed += span
    world.tell(f"{span / 1e6:g} s have passed")
    for process in tuple(world.processes):
        when = process.loop.due()
        if when is not None and when <= world.elapsed / 1e6 + 1e-9:
            process.log.append(("timer", world.elapsed))
            world.fire(process)
            world.turn(process)


def stay(world: World) -> None:
    """Nothing."""


# -- faults: what each means is said in `scenario.FAULTS`


def _stray(world: World, request: Request) -> None:
    until = world.elapsed + LEASE if request.kind == "call" else 1 << 62
    apply = (lambda: world.apply(request.ops)) if request.kind == "store" else request.apply
    world.strays.append(Stray(request.name, request.ops, apply, until))
    request.ties.late()


def _fail(world: World, number: int, how: str, retry: bool) -> None:
    request = world.request(number)
    process = request.process
    world.blame(request)
    world.tell(f"w{process.slot}: {request.name}: {_BROKEN[how]}{', so it is sent again' if retry else ''}")
    del process.requests[number]
    process.log.append((request.name, how, retry))
    request.future.set_exception(request.ties.broken(retry))
    world.turn(process)


def lose(world: World, number: int, retry: bool = False) -> None:
    _fail(world, number, "lose", retry)


def late(world: World, number: int, retry: bool = False) -> None:
    _stray(world, world.request(number))
    _fail(world, number, "late", retry)


def mute(world: World, number: int, retry: bool = False) -> None:
    if not world.request(number).executed:
        execute(world, number)
    _fail(world, number, "mute", retry)


def refuse(world: World, number: int) -> None:
    request = world.request(number)
    process = request.process
    world.tell(f"w{process.slot}: {request.name}: the store cannot hold the result")
    if process.cancelled:  # nobody may be there any more to send it again without
        world.blame(request)
    del process.requests[number]
    process.log.append((request.name, "refused"))
    request.future.set_exception(ValueError("item too large"))
    world.turn(process)
    if process.idle and "complete" in request.names:
        world.fail("unrepeated", f"{request.ops[0].key}: it happened, and w{process.slot} leaves that unrecorded")


def _points(process: Process) -> list[str]:
    """The crash points that a process is at."""
    found = [
        f"{name}.{'after' if request.executed else 'before'}"
        for request in process.requests.values()
        for name in request.names
    ]
    return [*found, "wait"] if process.loop.timers or not found else found


def crash(world: World, slot: int, late: bool = False) -> None:
    process = world.processes[slot]
    points = _points(process)
    world.crash_points.update(points)
    world.tell(f"w{slot} is killed at {' and '.join(points)}{', its request on the wire' * late}")
    for request in process.requests.values():
        if late and request.ties.lingers and not request.executed:
            _stray(world, request)
    world.bury(process)


def crash_after(world: World, number: int) -> None:
    slot = world.request(number).process.slot
    execute(world, number)
    crash(world, slot)


def cancel(world: World, slot: int, number: int) -> None:
    process = world.processes[slot]
    delivery = process.deliveries[number]
    delivery.cancelled = process.cancelled = True
    process.log.append(("cancel", delivery.entry.key))
    world.tell(f"w{slot}: its task is cancelled at {' and '.join(_points(process))}")
    assert delivery.task is not None
    delivery.task.cancel()
    process.forget_cancelled()
    world.turn(process)


def cancel_after(world: World, number: int, delivery: int) -> None:
    request = world.request(number)
    if not request.executed:
        execute(world, number)
    process = _hand_over(world, number)
    if request.kind == "store":  # one callback: the task that carries the reply hands it to the caller's future
        world.crank(process, 1)
    cancel(world, process.slot, delivery)


def stop(world: World, slot: int) -> None:
    process = world.processes[slot]
    process.stopping = True
    process.log.append("stop")
    world.tell(f"w{slot} is told to stop")
    world.stage.stop(world, process)
    world.turn(process)


def throw(world: World, number: int, permanent: bool = False) -> None:
    """The handler raises."""
    request = world.request(number)
    process = request.process
    error = Declined("declined") if permanent else Transient("try again")
    process.deliveries[request.of].raised = error
    if permanent:
        request.ties.deny()
    world.tell(
        f"w{process.slot}: {'the provider says no' if request.kind == 'call' else f'the handler raises {error!r}'}"
    )
    del process.requests[number]
    process.log.append((request.name, repr(error)))
    request.future.set_exception(error)
    world.turn(process)


def reject(world: World, number: int) -> None:
    """What it was sent to turns it away."""
    request = world.request(number)
    process, error = request.process, request.ties.refused()
    assert error is not None
    world.tell(f"w{process.slot}: {request.name}: {error}")
    del process.requests[number]
    process.log.append((request.name, "rejected"))
    request.future.set_exception(error)
    world.turn(process)


def elapse(world: World, span: str) -> None:
    spend(world, SPANS[span])


def slow(world: World) -> None:
    timer(world)


def jump(world: World, where: str) -> None:
    world.offset += JUMPS[where]
    world.tell(f"the store's clock jumps {where} by {abs(JUMPS[where]) / SECOND:g} s")


class _Away:
    """The sweeper's connection to a store that does not answer."""

    async def sweep(self, limit: int) -> Swept:
        raise StoreUnavailable("no answer")


def sweep_broken(world: World, slot: int) -> None:
    """The sweep of a process fails, which somebody has to be told."""
    world.deaf = True
    world.tell(f"w{slot}: the sweeper gets no answer from the store")
    runtime, told = world.processes[slot].runtime, [""]
    hooks, runtime.hooks = runtime.hooks, (lambda event: told.append(event.kind),)
    try:
        runtime.heartbeat.sweep(_Away())  # type: ignore[arg-type]
    finally:
        runtime.hooks = hooks
    if "sweep_failed" not in told:
        world.fail("silent", f"w{slot}: the sweep failed, and nobody was told")


def redeliver(world: World, number: int) -> None:
    entry = world.broker.entries[number]
    entry.ready, entry.not_before = True, world.elapsed
    world.tell(f"the broker takes message {number} for lost, and will deliver it again")


def resolve(world: World, key: str, state: Literal["done", "free", "failed"]) -> None:
    """The operator decides what is in doubt; a message that was parked is delivered again."""
    result = b'1"operator"' if state == "done" else None
    world.tell(f"the operator resolves {key}: {state}")
    if not run_sync(world.port.resolve(SCOPE, key, Resolution(state=state, retention=RETENTION, result=result))):
        world.fail("wedged", f"{key}: in doubt, and the operator cannot resolve it")
    _decided(world, key, state, result)


def forget(world: World, key: str) -> None:
    """The operator lets a key start anew, whatever has become of it."""
    world.tell(f"the operator makes the store forget {key}")
    if run_sync(world.port.forget(SCOPE, key, RETENTION)):  # else it had expired
        _decided(world, key, "free", None)


def _decided(world: World, key: str, state: str, result: bytes | None) -> None:
    world.ledger.decided(key, state, result, world.now())
    for entry in world.broker.entries:
        if entry.key == key and entry.state == "parked":
            entry.state, entry.ready, entry.not_before = "open", True, world.elapsed


def beat_broken(world: World, slot: int, how: str) -> None:
    beat(world, slot, how)


FREE: Final[dict[str, Callable[..., Any]]] = {
    step.__name__: step for step in (deliver, execute, answer, do, beat, sweep, arrive, timer, wait, stay)
}
FAULTS: Final[dict[str, Callable[..., Any]]] = {
    step.__name__: step
    for step in (
        lose, late, mute, refuse, crash, crash_after, cancel, cancel_after, throw, reject, slow, elapse, jump,
        sweep_broken, redeliver, resolve, forget, beat_broken, stop,
    )
}  # fmt: skip
