"""When are two moments the same? Then one of them need not be explored.

All that can still matter is in here: the clock, the rows, the queue, what every process has been told since it was last
idle (its memory is a function of that), what is on the wire, and what the oracle remembers. Owners are named by who
holds them, tokens and times are as they are; processes that differ only in their number are the same.
"""

from __future__ import annotations

from .simulation import Process, Simulation


def fingerprint(simulation: Simulation) -> int:
    """Equal for moments from which the same moves lead to the same verdicts (unless 64 bits of hash collide)."""
    ranked = sorted(
        ((_process(process), process.slot, process) for process in simulation.processes), key=lambda each: each[:2]
    )
    tags: dict[bytes, object] = {}
    holders: dict[int, int] = {}
    for rank, (_, _, process) in enumerate(ranked):
        for at, owner in enumerate(process.owners):
            tags[owner] = (rank, at)
        for delivery in process.deliveries:
            holders[delivery] = rank
    delayed: list[tuple[object, ...]] = []
    for at, delayed_request in enumerate(simulation.delayed):
        delayed.append((delayed_request.name, delayed_request.until))
        for op in delayed_request.ops:
            sender: bytes = getattr(op, "owner", b"")
            tags.setdefault(sender, ("stray", at))
            delayed.append((delayed_request.name, tags[sender], op.key, getattr(op, "token", 0)))
    tag = tags.get
    rows = []
    for scope in simulation.backend.scopes.values():
        for key, row in scope.items():
            first = simulation.oracle.recorded(key)
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
                    row.result if row.result != first else b"first",
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
            tuple(sorted(holders.get(each, -1) for each in entry.held)),
        )
        for entry in simulation.broker.entries
    )
    return hash(
        (
            simulation.elapsed,
            simulation.offset,
            simulation.faults,
            tuple(each[0] for each in ranked),
            tuple(delayed),
            tuple(sorted(rows, key=repr)) if len(rows) > 1 else tuple(rows),
            tuple(entries),
            simulation.oracle.state_key(tag),
            tuple(sorted(simulation.memory)),
            simulation.system.state_key(simulation, tag),
        )
    )


def _process(process: Process) -> str:
    return repr(
        (
            process.past,
            process.log,
            [(each.name, each.executed, each.reply) for each in process.requests.values()],
            sorted(run.sent_at for run in process.leased),
            [timer.due for timer in process.loop.timers],
        )
    )
