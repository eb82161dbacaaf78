"""EO401: a message that is published after the commit of the rows that it belongs to."""

from __future__ import annotations

from effectonce_lint.findings import Label
from effectonce_lint.python.values import TracedOperation

from .consumer_check import TOOL_STORES, ConsumerCheck, effect_of, is_in_database

_HANDLER_GUARDS = ("once", "block", "idempotent", "idempotent_function", "QueueOnce", "Singleton")
"""Tools that repeat the whole handler until it has succeeded."""
_DOCUMENT_STORES = ("mongo", "dynamo")
"""Stores that commit each write by itself."""


def check_composition(case: ConsumerCheck) -> None:
    """Report the first publish that a crash after the commit would lose."""
    writes = [op for op in case.ops if _is_write(op)]
    if not writes or any("outbox" in op.location.lower() or op.store == "outbox" for op in case.ops):
        return
    for op in case.effects:
        effect = effect_of(op)
        if effect.category not in ("publish", "enqueue") or op.handlers:
            continue
        if op.deferred and effect.category == "enqueue":
            continue  # enqueuing in on_commit is the usual advice, and a sweep can find the rows without a task
        if case.consumer.only_rules and effect.category != "publish":
            continue
        if any(guard.store in TOOL_STORES and guard.text in _HANDLER_GUARDS for guard in op.guards):
            continue
        committed = [write for write in writes if _commits_before(case, write, op)]
        if committed:
            case.report(
                "EO401",
                op.at,
                f"{case.consumer.subject} {_describe_publish(op)} after its rows are committed: a crash in between "
                "loses it",
                labels=(Label(committed[-1].at, "committed before"),),
                trail=case.calls_leading_to(op),
                help="write it into an outbox in the same transaction: `outbox.send(conn, message)`",
                mode="T",
            )
            return


def _describe_publish(op: TracedOperation) -> str:
    return "hands over to another task" if effect_of(op).category == "enqueue" else "publishes"


def _is_write(op: TracedOperation) -> bool:
    """Whether an operation writes rows that a publish may have to follow."""
    if op.store in _DOCUMENT_STORES:
        return op.kind == "claim"  # without a claim, the redelivery repeats the write and the publish
    if not is_in_database(op):
        return False
    return op.kind in ("write", "claim", "mark") or (op.effect is not None and op.effect.in_database)


def _commits_before(case: ConsumerCheck, write: TracedOperation, publish: TracedOperation) -> bool:
    """Whether ``write`` is committed before ``publish``, so that a crash may come in between."""
    if not case.trace.precedes(write, publish):
        return False
    if write.store in _DOCUMENT_STORES:
        return write in publish.guards and not write.tx.startswith("tx")
    if write.tx == publish.tx:
        return False
    if write.tx.startswith("auto"):
        return effect_of(publish).category == "publish"
    return True
