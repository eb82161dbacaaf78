"""The verdict on a guarded handler at the end of a schedule: whether anything is lost, doubled, or stuck."""

from __future__ import annotations

from collections.abc import Collection

from effectonce.core.run_sync import run_sync
from effectonce.errors import InDoubt, InProgress, PermanentFailure, ResultNotStored
from effectonce.record import Query

from .actions import deliver, execute_and_answer, pass_time, resolve, timer
from .simulation import SimulatedDelivery, Simulation
from .system import PermanentDecline


def judge_end(simulation: Simulation) -> None:
    """Judge the end state. One more delivery of every key must get the answer that its record has."""
    for entry in simulation.broker.unsettled():
        simulation.fail("wedged", f"message {entry.number} ({entry.key}) is neither acked, parked nor dead-lettered")
    naive = simulation.scenario.naive
    for key in sorted({entry.key for entry in simulation.broker.entries}):
        history = simulation.oracle.history(key)
        effects = history.effects
        states = {entry.state for entry in simulation.broker.entries if entry.key == key}
        lost = "acked" in states and not effects and not history.was_decided
        if lost:
            simulation.fail("lost", f"{key}: acked, and its effect never happened")
        if naive and effects > 1:
            simulation.fail("doubled", f"{key}: its effect happened {effects} times")
        simulation.tally[key] = (lost, history.repeated)
        if not simulation.faults and effects != 1 and not (simulation.scenario.seen and effects):
            simulation.fail("doubled" if effects else "lost", f"{key}: nothing went wrong, and {effects} effects")
        if simulation.violation is None and not naive:
            _probe(simulation, key, states)


def _probe(simulation: Simulation, key: str, states: Collection[str]) -> None:
    for _ in range(4):
        failure = deliver_probe(simulation, key).call_error
        if simulation.violation is not None:
            return
        if isinstance(failure, InProgress):
            # The delayed claim of a dead sender has arrived: its lease must end.
            pass_time(simulation, round((failure.lease_left or failure.retry_after) * 1e6))
        elif isinstance(failure, InDoubt):
            if key not in [record.key for record in run_sync(simulation.port.list(Query(state="in_doubt"))).records]:
                simulation.fail("lost", f"{key}: in doubt, and not on the operator's list")
            resolve(simulation, key, "free")
        elif failure is None:
            return
        elif isinstance(failure, ResultNotStored):
            if simulation.oracle.history(key).result is not None:
                simulation.fail("replay", f"{key}: a result was recorded, and a duplicate does not get it")
            return
        elif isinstance(failure, PermanentFailure | PermanentDecline):
            if "dead" not in states and not simulation.oracle.history(key).decided:
                simulation.fail("lost", f"{key}: failed for good, without a dead letter or a decision")
            return
        else:
            simulation.fail("unexpected", f"{key}: a delivery after the end raised {failure!r}")
            return
    simulation.fail("wedged", f"{key}: delivered again and again, and never settled")


def deliver_probe(simulation: Simulation, key: str) -> SimulatedDelivery:
    """Deliver ``key`` once more, to the first worker, and run that until the delivery ends."""
    entry = simulation.broker.send(key, probe=True)
    deliver(simulation, 0, entry.number)
    process = simulation.processes[0]
    (delivery,) = process.deliveries.values()
    while process.deliveries and simulation.violation is None:
        if process.requests:
            execute_and_answer(simulation, next(iter(process.requests)))
        elif process.loop.timers:
            timer(simulation)
        else:
            simulation.fail("wedged", f"{key}: a delivery that waits for nothing")
    return delivery
