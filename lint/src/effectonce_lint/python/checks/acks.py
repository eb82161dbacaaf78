"""EO201 (the ack comes before the work) and EO202 (the ack comes in spite of an error)."""

from __future__ import annotations

import ast
from math import inf
from typing import NamedTuple

from effectonce_lint.findings import Edit, Fix, Label, Place
from effectonce_lint.python.libraries.background_work import is_work
from effectonce_lint.python.modules import Module
from effectonce_lint.python.values import UNKNOWN_LITERAL, ExceptBlock, TracedOperation, Value
from effectonce_lint.word_lists import word_set

from .confidence import UNSURE
from .consumer_check import TOOL_STORES, ConsumerCheck, receives_message
from .edits import end_of


class _EarlyAck(NamedTuple):
    """A setting that acks on delivery. ``fixed``: the value to set instead; "" if only a redesign helps."""

    value: object
    fixed: str
    description: str


#: By family and the name of the setting.
_EARLY_ACK_SETTINGS: dict[str, dict[str, _EarlyAck]] = {
    "pika": {
        "auto_ack": _EarlyAck(True, "False", "auto_ack=True"),
        "no_ack": _EarlyAck(True, "False", "no_ack=True"),
    },
    "aio-pika": {"no_ack": _EarlyAck(True, "False", "no_ack=True")},
    "kombu": {"no_ack": _EarlyAck(True, "False", "no_ack=True")},
    "celery": {"acks_late": _EarlyAck(False, "True", "acks_late=False")},
    "kafka": {
        "enable.auto.commit": _EarlyAck(True, "False", "enable.auto.commit"),
        "enable_auto_commit": _EarlyAck(True, "False", "enable_auto_commit=True"),
    },
    "redis": {"noack": _EarlyAck(True, "False", "noack=True")},
    "faststream": {
        "ack_policy": _EarlyAck("ACK_FIRST", "", "AckPolicy.ACK_FIRST"),
        "auto_commit": _EarlyAck(True, "False", "auto_commit=True"),
    },
    "servicebus": {"receive_mode": _EarlyAck("RECEIVE_AND_DELETE", "", "receive and delete")},
    "taskiq": {"ack_type": _EarlyAck("WHEN_RECEIVED", "", "WHEN_RECEIVED")},
}
#: The parameters of a pika callback: channel, method, properties, body.
_PIKA_PARAMETERS = 4
_CONSUMER_DEPTH = 2  # `ExceptBlock.depth` in the consumer's own code


#: Families that ack when the consumer returns, and redeliver when it raises.
_RESPONSE_FAMILIES = word_set("webhook faststream lambda")

#: Families that ignore what a consumer returns: False does not make them redeliver.
_IGNORED_RESULT_FAMILIES = word_set("celery dramatiq rq arq taskiq huey procrastinate faststream")


def check_acks(case: ConsumerCheck) -> None:
    """Report acks before the work, and swallowed errors; one setting that acks early explains them all."""
    if not case.work or _check_settings(case):
        return
    _check_order(case)
    _check_background_work(case)
    _check_swallowed_errors(case)


def _check_settings(case: ConsumerCheck) -> bool:
    """Report a setting that acks on delivery. Returns whether there is one."""
    consumer = case.consumer
    for name, early_ack in _EARLY_ACK_SETTINGS.get(consumer.family, {}).items():
        value = consumer.settings.get(name)
        if value is None or not _has_value(value, early_ack.value):
            continue
        at, fix = _locate_setting(case, name, early_ack.fixed)
        case.report(
            "EO201",
            at,
            f"{early_ack.description}: the message of {case.consumer.subject} is acked before the work is done, "
            "so a crash loses it",
            help="ack when the work is done, and make it survive the redelivery",
            fix=fix,
            confidence=UNSURE if consumer.family == "celery" else 1.0,  # Celery's default, and here on purpose
        )
        return True
    if consumer.family == "celery" and "acks_late" not in consumer.settings:
        for name in ("task_acks_late", "CELERY_TASK_ACKS_LATE"):
            value, at = case.settings.get(name, (None, consumer.at))
            if value is not None and value.literal is False:
                problem = "tasks are acked before their work is done, so a crash loses them"
                case.report("EO201", at, f"task_acks_late=False: {problem}", confidence=UNSURE)
                return True
    return _check_auto_commit(case)


def _check_auto_commit(case: ConsumerCheck) -> bool:
    """Report Kafka's auto-commit, which is on by default, in a consumer that also commits by itself."""
    consumer = case.consumer
    if consumer.family != "kafka" or not consumer.settings or "**" in consumer.settings:
        return False
    if any(name in consumer.settings for name in ("enable.auto.commit", "enable_auto_commit")):
        return False
    commits = [op for op in case.ops if op.kind == "ack"]
    if not commits or not any(name in consumer.settings for name in ("group.id", "group_id")):
        return False
    case.report(
        "EO201",
        consumer.at,
        "auto-commit is on by default: offsets are committed in the background before the work is done",
        labels=(Label(commits[0].at, "committed by hand as well"),),
        help="turn enable.auto.commit off",
    )
    return True


def _has_value(value: Value, expected: object) -> bool:
    """Whether a setting has a value: a literal, a member of an enumeration, or one of them as a string."""
    if isinstance(expected, str):
        name = expected.replace("_", "")
        return (value.ref or value.text).upper().replace("_", "").endswith(name) or (
            isinstance(value.literal, str) and value.literal.upper().replace("_", "") == name
        )
    if value.literal is expected:
        return True
    return isinstance(value.literal, str) and value.literal.lower() == str(expected).lower()


def _locate_setting(case: ConsumerCheck, name: str, fixed: str) -> tuple[Place, Fix | None]:
    """Where the setting is written, and the fix that changes it."""
    for module, root in _setting_candidates(case):
        for node in ast.walk(root):
            if isinstance(node, ast.keyword) and node.arg == name:
                return module.place(node), _fix_setting(case, module, node.value, name, fixed)
            if isinstance(node, ast.Assign) and any(
                isinstance(target, ast.Name) and target.id == name for target in node.targets
            ):
                return module.place(node), _fix_setting(case, module, node.value, name, fixed)
            if isinstance(node, ast.Dict):
                for key, value in zip(node.keys, node.values, strict=True):
                    if isinstance(key, ast.Constant) and key.value == name:
                        return module.place(key), _fix_setting(case, module, value, name, fixed)
    return case.consumer.at, None


def _setting_candidates(case: ConsumerCheck) -> list[tuple[Module, ast.AST]]:
    """The nodes that may contain a setting, the nearest first."""
    consumer = case.consumer
    candidates: list[tuple[Module, ast.AST]] = []
    if consumer.registration is not None and consumer.registered_in is not None:
        candidates.append((consumer.registered_in, consumer.registration))
    if consumer.function is not None:
        candidates.append((consumer.function.module, consumer.function.node))
        if consumer.function.owner is not None:
            candidates.append((consumer.function.owner.module, consumer.function.owner.node))
    if consumer.receive is not None:
        module = consumer.function.module if consumer.function is not None else consumer.module
        candidates.append((module, module.tree))
    return candidates


def _fix_setting(case: ConsumerCheck, module: Module, value: ast.expr, name: str, fixed: str) -> Fix | None:
    """Change a setting. If the broker then waits for an ack that the code does not send, add the ack, or give up."""
    if not fixed or not isinstance(value, ast.Constant):
        return None
    text = fixed if isinstance(value.value, bool) else f'"{fixed.lower()}"'
    edits = [Edit(module.place(value), text)]
    title = f"set {name} to {fixed}"
    if case.consumer.family != "celery" and not any(op.kind == "ack" for op in case.ops):
        ack = _append_ack(case, module)
        if ack is None:
            return None
        edits.append(ack)
        title += " and ack at the end"
    return Fix(title, tuple(edits))


def _append_ack(case: ConsumerCheck, module: Module) -> Edit | None:
    """Add `channel.basic_ack(method.delivery_tag)` as the last line of a pika callback without a ``return``."""
    function = case.consumer.function
    if (
        case.consumer.family != "pika"
        or function is None
        or case.consumer.receive is not None
        or function.module is not module
    ):
        return None
    node = function.node
    if isinstance(node, ast.Lambda) or any(isinstance(child, ast.Return) for child in ast.walk(node)):
        return None
    parameters = [parameter.arg for parameter in (*node.args.posonlyargs, *node.args.args)][-_PIKA_PARAMETERS:]
    last = node.body[-1]
    if len(parameters) < _PIKA_PARAMETERS or last.lineno == node.lineno:
        return None
    channel, method, *_ = parameters
    return Edit(end_of(module.place(last)), f"\n{' ' * last.col_offset}{channel}.basic_ack({method}.delivery_tag)")


def _check_order(case: ConsumerCheck) -> None:
    """Report an ack that comes before the work, or that does not wait for background work."""
    for ack in (op for op in case.ops if op.kind == "ack"):
        if ack.handlers or ack.in_finally or any(arm in case.trace.exits for arm in ack.arms):
            continue  # the ack of a message that is not worked on
        for op in case.work:
            if op.handlers or op.in_finally:
                continue
            # an ack in a loop that does not contain the work may be for other messages
            is_early = case.trace.precedes(ack, op) and not set(ack.loops) - set(op.loops)
            if is_early or _skips_background_work(case, ack, op):
                _report_early_ack(case, ack, op)
                return


def _skips_background_work(case: ConsumerCheck, ack: TracedOperation, op: TracedOperation) -> bool:
    """Whether ``ack`` follows the start of background work without waiting for it."""
    return (
        op.handed_over_at is not None
        and not ack.handed_over_at
        and case.trace.precedes(op, ack)
        and _is_unawaited(case, op, ack.seq)
        and not _commits_finished(ack)
    )


def _report_early_ack(case: ConsumerCheck, ack: TracedOperation, op: TracedOperation) -> None:
    in_background = _skips_background_work(case, ack, op)
    labels = _label_handover(op) if in_background else (Label(op.at, _describe_work(op)),)
    remedy = "wait for the work before the ack, or ack where the work is done"
    case.report(
        "EO201",
        ack.at,
        f"{case.consumer.subject} acks its message before the work is done, so a crash loses it",
        labels=labels,
        trail=case.calls_leading_to(op),
        help=remedy if in_background else "move the ack behind the work",
    )


def _check_background_work(case: ConsumerCheck) -> None:
    """Report background work that is still running when the consumer returns, in families where returning acks."""
    if case.consumer.family not in _RESPONSE_FAMILIES or any(op.kind == "ack" for op in case.ops):
        return
    for op in case.work:
        if op.handed_over_at and not op.handlers and is_work(op) and _is_unawaited(case, op):
            case.report(
                "EO201",
                op.handed_over_at,
                f"{case.consumer.subject} answers before this work is done, so a crash loses its message",
                labels=() if op.at == op.handed_over_at else (Label(op.at, _describe_work(op)),),
                trail=case.calls_leading_to(op),
                help="do the work first, or store the message (a row, a broker's queue) and answer then",
            )
            return


def _commits_finished(ack: TracedOperation) -> bool:
    """Whether the code passes the offsets to commit, and so counts the messages whose work is done."""
    return ack.key is not None and not receives_message(ack) and ack.key.literal is UNKNOWN_LITERAL


def _is_unawaited(case: ConsumerCheck, op: TracedOperation, until: float = inf) -> bool:
    """Whether the code neither waits for background work nor has stored the message before it."""
    foreground = [other for other in case.ops if not other.handed_over_at and other.seq < until]
    return not any((other.kind == "wait" and other.seq > op.seq) or _persists_message(other) for other in foreground)


def _persists_message(op: TracedOperation) -> bool:
    """Whether an operation stores the message durably: as a row, a document, a message of another queue."""
    if op.kind in ("claim", "mark"):
        return op.store not in ("redis", "cache", "memory", *TOOL_STORES)
    return op.effect is not None and op.effect.category in ("insert", "publish", "enqueue", "append")


def _label_handover(op: TracedOperation) -> tuple[Label, ...]:
    assert op.handed_over_at is not None
    label = Label(op.handed_over_at, "handed over here")
    return (label,) if op.at == op.handed_over_at else (label, Label(op.at, _describe_work(op)))


def _describe_work(op: TracedOperation) -> str:
    return op.effect.what if op.effect is not None else "the work comes after it"


def _check_swallowed_errors(case: ConsumerCheck) -> None:
    """Report ``except`` blocks that only log an error of the work, after which the message is acked."""
    receiving_tries = {number for op in case.ops if op.kind == "receive" for number in op.tries}
    for handler in case.trace.handlers:
        if handler.try_number in receiving_tries:
            continue  # an error ends the loop, or the round before the ack
        if not _swallows(case, handler):
            continue
        tried = [op for op in case.work if handler.try_number in op.tries]
        if not tried or any(op.retrying for op in tried):
            continue
        if all(op.handlers or (op.kind == "call" and not op.text) for op in tried):
            continue
        if _is_acked_after(case, handler):
            case.report(
                "EO202",
                handler.at,
                f"an error of {case.consumer.subject} is caught here and only logged, and then its message is acked",
                labels=(Label(tried[0].at, "this may not have been done"),),
                help="re-raise it, or nack, or park the message where an operator looks",
            )


def _swallows(case: ConsumerCheck, handler: ExceptBlock) -> bool:
    """Whether an ``except`` block catches any error, does nothing about it, and does not report the failure."""
    if not handler.broad or not handler.trivial:
        return False
    if handler.raises or handler.returns_failure or handler.ending == "raise":
        return False
    # the consumer's own False is ignored by some families; a function's tells its caller about the failure
    is_ignored = handler.depth == _CONSUMER_DEPTH and case.consumer.family in _IGNORED_RESULT_FAMILIES
    return is_ignored or not handler.returns_false


def _is_acked_after(case: ConsumerCheck, handler: ExceptBlock) -> bool:
    """Whether the message is acked on the way through ``handler``."""
    acks = [op for op in case.ops if op.kind == "ack" and (handler.try_number, 0) not in op.arms]
    if any(handler.number in ack.handlers for ack in acks):
        return True
    if case.consumer.acks == "return":
        return handler.ending in ("next", "return", "loop")
    if not acks and case.consumer.family in ("nats",):
        return handler.ending in ("next", "return")
    if any(ack.in_finally for ack in acks):
        return True
    if handler.ending != "next":
        return False
    return any(
        handler.try_number not in ack.tries and not ack.handlers and _follows_handler(case, handler, ack)
        for ack in acks
    )


def _follows_handler(case: ConsumerCheck, handler: ExceptBlock, ack: TracedOperation) -> bool:
    """Whether ``ack`` comes after everything that the try of ``handler`` does."""
    tried = [op.seq for op in case.ops if handler.try_number in op.tries]
    return bool(tried) and ack.seq > max(tried)
