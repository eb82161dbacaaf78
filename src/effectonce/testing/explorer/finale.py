"""The end of a schedule: the faults are over, everything has been delivered. Is anything lost, doubled, or stuck?"""

from __future__ import annotations

from collections.abc import Collection

from effectonce.core.run_sync import run_sync
from effectonce.errors import InDoubt, InProgress, PermanentFailure, ResultNotStored
from effectonce.record import Query

from .stage import Declined
from .steps import deliver, do, resolve, spend, timer
from .world import Delivery, World


def finish(world: World) -> None:
    """Judge what is left. One more delivery of every key must find what the first ones have left behind."""
    for entry in world.broker.unsettled():
        world.fail("wedged", f"message {entry.number} ({entry.key}) is neither acked, parked nor dead-lettered")
    naive = world.scenario.naive
    for key in sorted({entry.key for entry in world.broker.entries}):
        book = world.ledger.book(key)
        effects = book.effects
        states = {entry.state for entry in world.broker.entries if entry.key == key}
        lost = "acked" in states and not effects and not book.decided
        if lost:
            world.fail("lost", f"{key}: acked, and its effect never happened")
        if naive and effects > 1:
            world.fail("doubled", f"{key}: its effect happened {effects} times")
        world.tally[key] = (lost, book.repeated)
        if not world.faults and effects != 1 and not (world.scenario.seen and effects):
            world.fail("doubled" if effects else "lost", f"{key}: nothing went wrong, and {effects} effects")
        if world.violation is None and not naive:
            _probe(world, key, states)


def _probe(world: World, key: str, states: Collection[str]) -> None:
    for _ in range(4):
        failure = delivered(world, key).came_to
        if world.violation is not None:
            return
        if isinstance(failure, InProgress):
            # The claim of a dead sender that has arrived after all: its lease must end.
            spend(world, round(failure.retry_after * 1e6))
        elif isinstance(failure, InDoubt):
            if key not in [record.key for record in run_sync(world.port.list(Query(state="in_doubt"))).records]:
                world.fail("lost", f"{key}: in doubt, and not on the operator's list")
            resolve(world, key, "free")
        elif failure is None:
            return
        elif isinstance(failure, ResultNotStored):
            if world.ledger.book(key).result is not None:
                world.fail("replay", f"{key}: a result was recorded, and a duplicate does not get it")
            return
        elif isinstance(failure, PermanentFailure | Declined):
            if "dead" not in states and not world.ledger.book(key).decided:
                world.fail("lost", f"{key}: failed for good, and nobody was told")
            return
        else:
            world.fail("unexpected", f"{key}: a delivery after all was over came to {failure!r}")
            return
    world.fail("wedged", f"{key}: delivered again and again, and it comes to nothing")


def delivered(world: World, key: str) -> Delivery:
    """Deliver ``key`` once more, to the first worker, and let that run to its end."""
    entry = world.broker.send(key, probe=True)
    deliver(world, 0, entry.number)
    process = world.processes[0]
    (delivery,) = process.deliveries.values()
    while process.deliveries and world.violation is None:
        if process.requests:
            do(world, next(iter(process.requests)))
        elif process.loop.timers:
            timer(world)
        else:
            world.fail("wedged", f"{key}: a delivery that waits for nothing")
    return delivery
