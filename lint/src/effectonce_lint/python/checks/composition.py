"""EO401: a row and a message that should come together."""

from __future__ import annotations

from effectonce_lint.findings import Label
from effectonce_lint.python.values import Operation

from .consumer_check import ConsumerCheck, effect_of, is_in_database

_WHOLE = ("once", "block", "idempotent", "idempotent_function", "QueueOnce", "Singleton")

_DOCUMENTS = ("mongo", "dynamo")
"""Stores that commit each write by itself."""


def check_composition(case: ConsumerCheck) -> None:
    writes = [op for op in case.ops if _is_write(op)]
    if not writes or any("outbox" in op.location.lower() or op.store == "outbox" for op in case.ops):
        return
    for op in case.effects:
        effect = effect_of(op)
        if effect.category not in ("publish", "enqueue") or op.handlers:
            continue
        if op.deferred and effect.category == "enqueue":
            continue  # what everybody recommends, and a task can be swept for
        if case.consumer.only and effect.category != "publish":
            continue
        if any(guard.store in ("tool", "opaque") and guard.text in _WHOLE for guard in op.guards):
            continue  # the whole handler runs again until it has succeeded
        before = [write for write in writes if _commits_before(case, write, op)]
        if before:
            case.report(
                "EO401",
                op.at,
                f"{case.who} {_describe_publish(op)} after its rows are committed: a crash in between loses it",
                labels=(Label(before[-1].at, "committed before"),),
                trail=case.calls_leading_to(op),
                help="write it into an outbox in the same transaction: `outbox.send(conn, message)`",
                mode="T",
            )
            return


def _describe_publish(op: Operation) -> str:
    return "hands over to another task" if effect_of(op).category == "enqueue" else "publishes"


def _is_write(op: Operation) -> bool:
    if op.store in _DOCUMENTS:
        return op.kind == "claim"  # without one, both are done again
    if not is_in_database(op):
        return False
    return op.kind in ("write", "claim", "mark") or (op.effect is not None and op.effect.in_database)


def _commits_before(case: ConsumerCheck, write: Operation, publish: Operation) -> bool:
    if not case.trace.precedes(write, publish):
        return False
    if write.store in _DOCUMENTS:
        return write in publish.guards and not write.tx.startswith("tx")
    if write.tx == publish.tx:
        return False
    if write.tx.startswith("auto"):
        return effect_of(publish).category == "publish"
    return True
