"""A fingerprint of the simulation's state: of two equal states only one needs to be explored.

It covers everything that can still matter: the clock, the rows, the queue, the replies and events that every process
has received since it was last idle (its memory is a function of them), the delayed requests, and the oracle's memory.
Owners are named by the process that holds them; processes that differ only in their number are the same.
"""

from __future__ import annotations

from .simulation import Process, Simulation


def fingerprint(simulation: Simulation) -> int:
    """Return a number that is equal for states from which the same moves lead to the same verdicts (unless 64 bits of
    hash collide)."""
    ranked = sorted(
        ((_describe(process), process.slot, process) for process in simulation.processes), key=lambda rank: rank[:2]
    )
    tags: dict[bytes, object] = {}
    holders: dict[int, int] = {}
    for rank, (_, _, process) in enumerate(ranked):
        for index, owner in enumerate(process.owners):
            tags[owner] = (rank, index)
        for delivery in process.deliveries:
            holders[delivery] = rank
    delayed: list[tuple[object, ...]] = []
    for index, delayed_request in enumerate(simulation.delayed):
        delayed.append((delayed_request.name, delayed_request.until))
        for op in delayed_request.ops:
            sender: bytes = getattr(op, "owner", b"")
            tags.setdefault(sender, ("stray", index))
            delayed.append((delayed_request.name, tags[sender], op.key, getattr(op, "token", 0)))
    tag = tags.get
    rows = []
    for scope in simulation.backend.scopes.values():
        for key, row in scope.items():
            first_result = simulation.oracle.first_result(key)
            rows.append(
                (
                    key,
                    row.state,
                    tag(row.owner),
                    row.token,
                    row.attempts,
                    row.generation,
                    row.expires_at,
                    row.lease_until if row.state == "claimed" else 0,
                    row.doubt_on_lapse,
                    row.result if row.result != first_result else b"first",
                    row.error,
                    row.note,
                )
            )
    entries = sorted(
        (
            entry.key,
            entry.state,
            entry.ready,
            entry.not_before if entry.ready else 0,
            tuple(sorted(holders.get(delivery, -1) for delivery in entry.held)),
        )
        for entry in simulation.broker.entries
    )
    return hash(
        (
            simulation.elapsed,
            simulation.offset,
            simulation.faults,
            tuple(description for description, _, _ in ranked),
            tuple(delayed),
            tuple(sorted(rows, key=repr)) if len(rows) > 1 else tuple(rows),
            tuple(entries),
            simulation.oracle.state_key(tag),
            tuple(sorted(simulation.memory)),
            simulation.system.state_key(simulation, tag),
        )
    )


def _describe(process: Process) -> str:
    return repr(
        (
            process.past_hash,
            process.events,
            [(request.name, request.executed, request.reply) for request in process.requests.values()],
            sorted(run.lease_requested_at for run in process.leased),
            [timer.due for timer in process.loop.timers],
        )
    )
