"""EO201 (acked before the work) and EO202 (acked in spite of an error)."""

from __future__ import annotations

import ast
from math import inf

from effectonce_lint.findings import Edit, Fix, Label, Place
from effectonce_lint.python.libraries.background_work import is_work
from effectonce_lint.python.modules import Module
from effectonce_lint.python.values import UNKNOWN, ExceptBlock, Operation, Value
from effectonce_lint.word_lists import word_set

from .consumer_check import TOOL_STORES, ConsumerCheck, receives_message
from .edits import end_of

#: family: settings that ack as the message is handed over, with the value that does so and the one that does not.
_SETTINGS: dict[str, dict[str, tuple[object, str, str]]] = {
    "pika": {"auto_ack": (True, "False", "auto_ack=True"), "no_ack": (True, "False", "no_ack=True")},
    "aio-pika": {"no_ack": (True, "False", "no_ack=True")},
    "kombu": {"no_ack": (True, "False", "no_ack=True")},
    "celery": {"acks_late": (False, "True", "acks_late=False")},
    "kafka": {
        "enable.auto.commit": (True, "False", "enable.auto.commit"),
        "enable_auto_commit": (True, "False", "enable_auto_commit=True"),
    },
    "redis": {"noack": (True, "False", "noack=True")},
    "faststream": {
        "ack_policy": ("ACK_FIRST", "", "AckPolicy.ACK_FIRST"),
        "auto_commit": (True, "False", "auto_commit=True"),
    },
    "servicebus": {"receive_mode": ("RECEIVE_AND_DELETE", "", "receive and delete")},
    "taskiq": {"ack_type": ("WHEN_RECEIVED", "", "WHEN_RECEIVED")},
}


#: Families whose message is done with as soon as the consumer returns, and that would deliver it again otherwise.
_ANSWERS = word_set("webhook faststream lambda")

#: Families that ack whatever a consumer returns: False is no refusal there.
_HEEDLESS = word_set("celery dramatiq rq arq taskiq huey procrastinate faststream")


def check_acks(case: ConsumerCheck) -> None:
    if not case.work:
        return
    early = _check_settings(case)
    if not early:
        _check_order(case)
        _check_background_work(case)
    _check_swallowed(case, early)


def _check_settings(case: ConsumerCheck) -> bool:
    """Auto-ack and its relatives."""
    consumer = case.consumer
    for name, (bad, good, said) in _SETTINGS.get(consumer.family, {}).items():
        value = consumer.settings.get(name)
        if value is None or not _has_value(value, bad):
            continue
        at, fix = _locate_setting(case, name, good)
        case.report(
            "EO201",
            at,
            f"{said}: the message of {case.who} is acked before the work is done, so a crash loses it",
            help="ack when the work is done, and make it survive the redelivery",
            fix=fix,
        )
        return True
    if consumer.family == "celery":
        for name, (value, place) in case.settings.items():
            if (
                name in ("task_acks_late", "CELERY_TASK_ACKS_LATE")
                and value.literal is False
                and "acks_late" not in consumer.settings
            ):
                if not any(each.rule == "EO201" and each.place == place for each in case.findings):
                    case.report(
                        "EO201",
                        place,
                        "task_acks_late=False: tasks are acked before their work is done, so a crash loses them",
                    )
                return True
    return _check_auto_commit(case)


def _check_auto_commit(case: ConsumerCheck) -> bool:
    """Kafka commits by itself unless told not to: beside commits of one's own that is a mistake."""
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


def _has_value(value: Value, bad: object) -> bool:
    if isinstance(bad, str):
        return (value.ref or value.text).upper().replace("_", "").endswith(bad.replace("_", "")) or (
            isinstance(value.literal, str) and value.literal.upper().replace("_", "") == bad.replace("_", "")
        )
    if value.literal is bad:
        return True
    return isinstance(value.literal, str) and value.literal.lower() == str(bad).lower()


def _locate_setting(case: ConsumerCheck, name: str, good: str) -> tuple[Place, Fix | None]:
    """Where the setting is written, and the edit that turns it round."""
    for module, node in _setting_candidates(case):
        for each in ast.walk(node):
            if isinstance(each, ast.keyword) and each.arg == name:
                return module.place(each), _flip_setting(case, module, each.value, name, good)
            if isinstance(each, ast.Assign) and any(
                isinstance(target, ast.Name) and target.id == name for target in each.targets
            ):
                return module.place(each), _flip_setting(case, module, each.value, name, good)
            if isinstance(each, ast.Dict):
                for key, value in zip(each.keys, each.values, strict=True):
                    if isinstance(key, ast.Constant) and key.value == name:
                        return module.place(key), _flip_setting(case, module, value, name, good)
    return case.consumer.at, None


def _setting_candidates(case: ConsumerCheck) -> list[tuple[Module, ast.AST]]:
    """Where to look for a setting, the nearest first."""
    consumer = case.consumer
    out: list[tuple[Module, ast.AST]] = []
    if consumer.registration is not None and consumer.registered_in is not None:
        out.append((consumer.registered_in, consumer.registration))
    if consumer.function is not None:
        out.append((consumer.function.module, consumer.function.node))
        if consumer.function.owner is not None:
            out.append((consumer.function.owner.module, consumer.function.owner.node))
    if consumer.receive is not None:
        module = consumer.function.module if consumer.function is not None else consumer.module
        out.append((module, module.tree))
    return out


def _flip_setting(case: ConsumerCheck, module: Module, value: ast.expr, name: str, good: str) -> Fix | None:
    """Flip a setting. If the broker then waits for an ack that the code does not send, add the ack, or give up."""
    if not good or not isinstance(value, ast.Constant):
        return None
    text = good if isinstance(value.value, bool) else f'"{good.lower()}"'
    edits = [Edit(module.place(value), text)]
    title = f"set {name} to {good}"
    if case.consumer.family != "celery" and not any(op.kind == "ack" for op in case.ops):
        ack = _append_ack(case, module)
        if ack is None:
            return None
        edits.append(ack)
        title += " and ack at the end"
    return Fix(title, tuple(edits))


def _append_ack(case: ConsumerCheck, module: Module) -> Edit | None:
    """`channel.basic_ack(method.delivery_tag)` as the last line of a pika callback that has but one way out."""
    function = case.consumer.function
    if (
        case.consumer.family != "pika"
        or function is None
        or case.consumer.receive is not None
        or function.module is not module
    ):
        return None
    node = function.node
    if isinstance(node, ast.Lambda) or any(isinstance(each, ast.Return) for each in ast.walk(node)):
        return None
    names = [each.arg for each in (*node.args.posonlyargs, *node.args.args)][-4:]
    last = node.body[-1]
    if len(names) < 4 or last.lineno == node.lineno:
        return None
    return Edit(end_of(module.place(last)), f"\n{' ' * last.col_offset}{names[0]}.basic_ack({names[1]}.delivery_tag)")


def _check_order(case: ConsumerCheck) -> None:
    """An ack that stands before the work, or beside work that it does not wait for."""
    for ack in (op for op in case.ops if op.kind == "ack"):
        if ack.handlers or ack.final or any(arm in case.trace.exits for arm in ack.arms):
            continue  # acked on the way out
        for op in case.work:
            if op.handlers or op.final:
                continue
            late = case.trace.precedes(ack, op) and not set(ack.loops) - set(op.loops)  # its loop may be over by then
            beside = op.handed and not ack.handed and case.trace.precedes(op, ack) and _is_unawaited(case, op, ack.seq)
            beside = beside and not _commits_finished(ack)
            if late or beside:
                case.report(
                    "EO201",
                    ack.at,
                    f"{case.who} acks its message before the work is done, so a crash loses it",
                    labels=_label_handover(op) if beside else (Label(op.at, _describe_work(op)),),
                    trail=case.calls_leading_to(op),
                    help="wait for the work before the ack, or ack where the work is done"
                    if beside
                    else "move the ack behind the work",
                )
                return


def _check_background_work(case: ConsumerCheck) -> None:
    """Work that a consumer leaves behind when it returns, where to return is to ack."""
    if case.consumer.family not in _ANSWERS or any(op.kind == "ack" for op in case.ops):
        return
    for op in case.work:
        if op.handed and not op.handlers and is_work(op) and _is_unawaited(case, op):
            case.report(
                "EO201",
                op.handed,
                f"{case.who} answers before this work is done, so a crash loses its message",
                labels=() if op.at == op.handed else (Label(op.at, _describe_work(op)),),
                trail=case.calls_leading_to(op),
                help="do the work first, or store the message (a row, a broker's queue) and answer then",
            )
            return


def _commits_finished(ack: Operation) -> bool:
    """`consumer.commit(finished)`: of messages whose work is done, as somebody keeps count of them."""
    return ack.key is not None and not receives_message(ack) and ack.key.literal is UNKNOWN


def _is_unawaited(case: ConsumerCheck, op: Operation, until: float = inf) -> bool:
    """Whether the code neither waits for the work that it handed over nor stored the message before."""
    between = [each for each in case.ops if not each.handed and each.seq < until]
    return not any((each.kind == "wait" and each.seq > op.seq) or _persists_message(each) for each in between)


def _persists_message(op: Operation) -> bool:
    """Whether a message is kept by what comes first: as a row, a document, a message of another queue."""
    if op.kind in ("claim", "mark"):
        return op.store not in ("redis", "cache", "memory", *TOOL_STORES)
    return op.effect is not None and op.effect.category in ("insert", "publish", "enqueue", "append")


def _label_handover(op: Operation) -> tuple[Label, ...]:
    assert op.handed is not None
    here = Label(op.handed, "handed over here")
    return (here,) if op.at == op.handed else (here, Label(op.at, _describe_work(op)))


def _describe_work(op: Operation) -> str:
    return op.effect.what if op.effect is not None else "the work comes after it"


def _check_swallowed(case: ConsumerCheck, early: bool) -> None:
    if early:
        return
    received = {number for op in case.ops if op.kind == "receive" for number in op.tries}
    for handler in case.trace.handlers:
        if handler.body in received:
            continue  # an error ends the loop, or the round before the ack
        if (
            not handler.broad
            or not handler.trivial
            or handler.raises
            or handler.returns_failure
            or handler.how == "raise"
            or (handler.says_false and not (handler.depth == 2 and case.consumer.family in _HEEDLESS))
        ):
            continue
        tried = [op for op in case.work if handler.body in op.tries]
        if not tried or any(op.retrying for op in tried):
            continue
        if all(op.handlers or (op.kind == "call" and not op.text) for op in tried):
            continue
        if _is_acked_after(case, handler):
            case.report(
                "EO202",
                handler.at,
                f"an error of {case.who} is caught here and only logged, and then its message is acked",
                labels=(Label(tried[0].at, "this may not have been done"),),
                help="re-raise it, or nack, or park the message where somebody looks",
            )


def _is_acked_after(case: ConsumerCheck, handler: ExceptBlock) -> bool:
    """Whether the message is acked on the way through ``handler``."""
    acks = [op for op in case.ops if op.kind == "ack" and (handler.body, 0) not in op.arms]
    if any(handler.number in ack.handlers for ack in acks):
        return True
    if case.consumer.acks == "return":
        return handler.how in ("next", "return", "loop")
    if not acks and case.consumer.family in ("nats",):
        return handler.how in ("next", "return")
    if any(ack.final for ack in acks):
        return True
    if handler.how != "next":
        return False
    return any(
        handler.body not in ack.tries and not ack.handlers and _follows_handler(case, handler, ack) for ack in acks
    )


def _follows_handler(case: ConsumerCheck, handler: ExceptBlock, ack: Operation) -> bool:
    tried = [op.seq for op in case.ops if handler.body in op.tries]
    return bool(tried) and ack.seq > max(tried)
