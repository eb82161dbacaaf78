"""P11 and EO101 to EO104: effects that a duplicate repeats, because they have no guard or a guard with a hole."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from effectonce_lint.findings import Label
from effectonce_lint.python.libraries.message_parts import is_unstable
from effectonce_lint.python.values import TracedOperation, Value

from .confidence import confidence_of_effect, confidence_of_hole
from .consumer_check import TOOL_STORES, ConsumerCheck, advice_for, effect_of, in_same_transaction, is_in_database

#: Effects of an ``except`` block that may be repeated: it reports the failure, and a second report is harmless.
_ALERT_CATEGORIES = ("mail", "message", "publish", "http", "append", "insert", "counter", "enqueue")
_UNDOING_CATEGORIES = ("payment", "increment")
_MAX_LABELS = 6
_COMPENSATION_NAME = re.compile(
    r"(?:^|\.)_*(?:on_|do_|run_|handle_)?(?:compensat\w*|undo|unwind|roll_?back|revert)(?=$|[._A-Z])(?!_on)|\w*Compensat"
).search
#: By family: settings that make the framework redeliver a failed message. (Celery's max_retries alone does not.)
_REDELIVERY_SETTINGS = {
    "celery": ("autoretry_for",),
    "dramatiq": ("max_retries", "retry_when", "min_backoff"),
    "huey": ("retries",),
    "taskiq": ("retry_on_error",),
    "procrastinate": ("retry",),
    "rq": ("retry",),
}


@dataclass(slots=True)
class EffectVerdict:
    """The verdict on one effect: the rule that it breaks, or "" if it breaks none."""

    rule: str = ""
    effect: TracedOperation | None = None
    guard: TracedOperation | None = None
    """The check or claim with the hole."""
    record: TracedOperation | None = None
    covered: bool = True
    """Whether some guard holds even if the worker dies between the effect and its record."""
    late: bool = False
    """Whether a crash between the effect and its record also lets a duplicate through (EO103)."""
    note: str = ""


def check_dedup(case: ConsumerCheck) -> list[EffectVerdict]:
    """Report the effects of a consumer that a duplicate repeats. Returns all verdicts, for the rules about keys."""
    verdicts = []
    for op in case.effects:
        if op.handlers and effect_of(op).category in _ALERT_CATEGORIES:
            continue
        verdict = verdict_of(case, op)
        verdict.effect = op
        verdicts.append(verdict)
    _report_unguarded(case, [verdict for verdict in verdicts if verdict.rule == "P11"])
    for verdict in verdicts:
        if verdict.rule and verdict.rule != "P11":
            _report_hole(case, verdict)
        if verdict.late:
            _report_hole(case, replace(verdict, rule="EO103"))
    return verdicts


# -- the decision


def verdict_of(case: ConsumerCheck, op: TracedOperation) -> EffectVerdict:
    """Decide which rule an effect breaks. The first guard that settles the question wins: a tool, a claim, a check."""
    effect = effect_of(op)
    if effect.category == "enqueue":
        return EffectVerdict()
    if effect.key_given and not (effect.category == "publish" and effect.key is not None and is_unstable(effect.key)):
        return EffectVerdict()
    guards = list(dict.fromkeys(op.guards))
    if any(guard.store in TOOL_STORES for guard in guards):
        return EffectVerdict()
    claims = [
        guard
        for guard in guards
        if guard is not op and guard.atomic and guard.kind in ("claim", "mark", "unmark", "effect")
    ]
    if claims:
        return _verdict_for_claim(case, op, claims)
    loose = [guard for guard in guards if guard.kind == "mark" and not guard.atomic]
    if loose:  # the code tests the answer of a SET without NX, which is always yes
        return EffectVerdict("EO105" if loose[0].store in ("redis", "cache") else "P11", guard=loose[0], covered=False)
    for check in (guard for guard in guards if guard.kind == "read"):
        verdict = _verdict_for_check(case, op, check)
        if verdict is not None:
            return verdict
    return _verdict_without_guard(case, op)


def _verdict_for_claim(case: ConsumerCheck, op: TracedOperation, claims: list[TracedOperation]) -> EffectVerdict:
    """The verdict on an effect behind atomic claims: does a failure after the claim lose the work?"""
    effect = effect_of(op)
    outcomes = []
    for claim in claims:
        if not is_in_database(claim):
            redelivers = _requests_redelivery(case) or (effect.in_database and _errors_redeliver(case))
            loses_work = (
                redelivers and not _is_claim_released(case, claim, op) and not _is_claim_completed(case, claim, op)
            )
            outcomes.append(EffectVerdict("EO104", guard=claim) if loses_work else EffectVerdict())
        elif in_same_transaction(claim, op):
            outcomes.append(EffectVerdict(covered=effect.in_database))
        elif _is_claim_completed(case, claim, op) or _is_claim_released(case, claim, op):
            outcomes.append(EffectVerdict())
        elif not claim.dedup and claim.kind != "claim":  # a compare-and-set of a state of the business
            loses_work = _requests_redelivery(case) and not effect.in_database and effect.category != "publish"
            outcomes.append(EffectVerdict("EO104", guard=claim) if loses_work else EffectVerdict())
        elif effect.in_database and is_in_database(op):
            outcomes.append(EffectVerdict("EO102", guard=claim, record=claim))
        elif effect.category == "publish":
            outcomes.append(EffectVerdict())  # EO401 reports it
        else:
            outcomes.append(EffectVerdict("EO104", guard=claim))
    return next((verdict for verdict in outcomes if not verdict.rule), outcomes[0])


def _requests_redelivery(case: ConsumerCheck) -> bool:
    """Whether the consumer requests a redelivery when the work fails, so that a mark left behind would drop it."""
    if any(op.kind in ("retry", "nack") for op in case.ops):
        return True
    settings = case.consumer.settings
    names = _REDELIVERY_SETTINGS.get(case.consumer.family, ())
    return any(name in settings and settings[name].literal not in (0, None, False) for name in names)


def _errors_redeliver(case: ConsumerCheck) -> bool:
    """Whether an error of the work makes the broker redeliver the message, without any setting."""
    return case.consumer.acks == "explicit" or case.consumer.family in ("webhook", "lambda")


def _is_claim_released(case: ConsumerCheck, claim: TracedOperation, op: TracedOperation) -> bool:
    """Whether the mark is removed again when the work fails."""
    return any(
        later.kind == "unmark"
        and later.seq > op.seq
        and (later.handlers or later.in_finally or later.guards)
        and _in_same_location(later, claim)
        for later in case.ops
    )


def _is_claim_completed(case: ConsumerCheck, claim: TracedOperation, op: TracedOperation) -> bool:
    """Whether the claim has a second state that is set after the effect: pending, then done (an intent)."""
    return any(
        later is not claim
        and later.kind in ("mark", "write")
        and later.seq > op.seq
        and _in_same_location(later, claim)
        and not later.handlers
        for later in case.ops
    )


def _in_same_location(first: TracedOperation, second: TracedOperation) -> bool:
    """Whether both are about the same table or key. Of an ORM, the model counts, without the column."""
    if first.location == second.location:
        return True
    if {first.store, second.store} <= {"orm", "entity"}:
        return first.location.partition(".")[0] == second.location.partition(".")[0]
    return False


def _verdict_for_check(case: ConsumerCheck, op: TracedOperation, check: TracedOperation) -> EffectVerdict | None:
    """The verdict on an effect behind a look-up; None if the look-up is a condition of the business."""
    records = [record for record in case.records if record is not op and _records_check(record, check)]
    is_own_record = _records_check(op, check)  # the effect inserts the row that the check looks for
    if not records and not is_own_record:
        return EffectVerdict() if check.dedup else None
    effect = effect_of(op)
    locked = check.locked or op.locks > 0
    before = [record for record in records if case.trace.precedes(record, op) and case.trace.precedes(check, record)]
    if before:
        return _verdict_for_early_mark(case, op, check, before[0], locked)
    if check.store == "memory":
        return EffectVerdict(
            "P11",
            guard=check,
            covered=False,
            note=f"only `{check.location}`, in this process's memory, remembers; a restart forgets it",
        )
    after = [record for record in records if case.trace.precedes(op, record)]
    if not after and not is_own_record:
        return EffectVerdict() if check.dedup else None
    if locked:
        return EffectVerdict(covered=effect.in_database)
    if not after:
        return EffectVerdict("EO101", guard=check, record=op, covered=False)
    record = after[0]
    if effect.in_database and is_in_database(op) and is_in_database(record):
        if record.store == "entity" or record.kind == "write":
            return EffectVerdict("EO101", guard=check, record=record, covered=False)
        if not in_same_transaction(op, record):
            return EffectVerdict("EO102", guard=check, record=record, covered=False, late=True)
        if record.ignored_conflict or record.kind == "effect":
            return EffectVerdict("EO101", guard=check, record=record, covered=False)
        return EffectVerdict()
    return EffectVerdict("EO101", guard=check, record=record, covered=False, late=True)


def _verdict_for_early_mark(
    case: ConsumerCheck, op: TracedOperation, check: TracedOperation, record: TracedOperation, locked: bool
) -> EffectVerdict:
    """The verdict on an effect whose record is written before it, after a look-up."""
    effect = effect_of(op)
    if is_in_database(record):
        if locked:
            return EffectVerdict(covered=effect.in_database)
        if (
            record.store == "entity"
            or record.kind == "write"
            or (in_same_transaction(record, op) and effect.in_database)
        ):
            return EffectVerdict("EO101", guard=check, record=record, covered=False)
        return EffectVerdict("EO104", guard=check, record=record, covered=False)
    if locked:
        return (
            EffectVerdict("EO104", guard=check, record=record)
            if not _is_claim_released(case, record, op)
            else EffectVerdict()
        )
    if record.store in ("redis", "cache") and not record.atomic:
        return EffectVerdict("EO105", guard=check, record=record, covered=False)
    if _is_claim_released(case, record, op):
        return EffectVerdict("EO101", guard=check, record=record, covered=False)
    return EffectVerdict("EO104", guard=check, record=record, covered=False)


def _records_check(record: TracedOperation, check: TracedOperation) -> bool:
    """Whether ``record`` writes what ``check`` looked up."""
    if record is check:
        return False
    if check.store == "entity":
        model, _, column = check.location.partition(".")
        updates = record.store == "orm" and record.location == model and record.kind in ("write", "mark")
        return (updates and column in record.columns) or (
            record.store == "entity" and record.location == check.location
        )
    if check.store == "orm" and record.store == "orm":
        return (
            record.location == check.location
            and record.kind in ("claim", "mark", "effect")
            and (record.kind != "effect" or effect_of(record).category == "insert")
        )
    if check.store != record.store or record.location != check.location:
        return False
    if check.store == "sql":
        if record.kind == "write":
            return bool(set(record.columns) & set(check.columns)) or "*" in check.columns
        return record.kind in ("claim", "mark") or (record.effect is not None and record.effect.category == "insert")
    return True


def _verdict_without_guard(case: ConsumerCheck, op: TracedOperation) -> EffectVerdict:
    """The verdict on an effect without a guard before it; a record may follow."""
    effect = effect_of(op)
    for record in case.ops:
        if record.kind != "claim" or not case.trace.precedes(op, record) or not (record.dedup or record.tries):
            continue
        if effect.in_database and is_in_database(op) and is_in_database(record):
            return (
                EffectVerdict()
                if in_same_transaction(op, record)
                else EffectVerdict("EO102", record=record, covered=False)
            )
        return EffectVerdict("EO103", record=record, covered=False)
    return EffectVerdict("P11", covered=False)


# -- the reports


def _report_unguarded(case: ConsumerCheck, verdicts: list[EffectVerdict]) -> None:
    consumer = case.consumer
    undoing = [verdict for verdict in verdicts if verdict.effect is not None and is_compensation(case, verdict.effect)]
    for verdict in undoing:
        assert verdict.effect is not None
        _report_compensation(case, verdict.effect)
    ops = [verdict.effect for verdict in verdicts if verdict.effect is not None and verdict not in undoing]
    if not ops or (consumer.family == "saga"):
        return
    first = max(ops, key=lambda op: confidence_of_effect(case, op))
    mode, remedy = advice_for(effect_of(first))
    labels = tuple(Label(op.at, effect_of(op).what) for op in ops[:_MAX_LABELS])
    others = f", and {len(ops) - 1} more effect{'s' if len(ops) > 2 else ''}" if len(ops) > 1 else ""
    note = next((verdict.note for verdict in verdicts if verdict.note), "") or _near_guard_hint(case, first)
    case.report(
        "P11",
        consumer.at,
        f"{consumer.subject} {effect_of(first).what} again whenever {_describe_repetition(case)}{others}",
        labels=labels,
        trail=case.calls_leading_to(first),
        note=note,
        help=remedy,
        mode=mode,
        sure=any(effect_of(op).sure for op in ops),
        confidence=confidence_of_effect(case, first),
    )


def _describe_repetition(case: ConsumerCheck) -> str:
    """What repeats a consumer, for a message; of a tool, with the hint that it gives and does not keep."""
    if case.consumer.family != "agent":
        return "its message is delivered again"
    hints = case.consumer.settings.get("annotations", Value()).fields or {}
    wrong = [name for name in ("readOnlyHint", "idempotentHint") if name in hints and hints[name].literal is True]
    return "an agent calls it again" + (f", though it declares {wrong[0]}" if wrong else "")


def _near_guard_hint(case: ConsumerCheck, op: TracedOperation) -> str:
    """Describe code that looks like a guard but does not work as one."""
    if op.locks:
        return "a lock keeps two deliveries apart, but lets both through one after the other"
    for record in case.ops:
        if record.kind == "mark" and record.dedup and record.ignored_conflict and case.trace.precedes(record, op):
            return f"line {record.at.line} records the message, but no code checks whether it was there already"
    return ""


def is_compensation(case: ConsumerCheck, op: TracedOperation) -> bool:
    """Whether an effect undoes a step: in an ``except`` block, or in a function that is named after compensation."""
    if case.consumer.family == "saga" or any(map(_COMPENSATION_NAME, op.trail)):
        return effect_of(op).category in (*_UNDOING_CATEGORIES, "insert", "http", "counter")
    return bool(op.handlers) and effect_of(op).category in _UNDOING_CATEGORIES


def _report_compensation(case: ConsumerCheck, op: TracedOperation) -> None:
    effect = effect_of(op)
    mode, remedy = advice_for(effect)
    case.report(
        "EO402",
        op.at,
        f"undoing a step {effect.what} again each time that it is run again",
        trail=case.calls_leading_to(op),
        help=remedy,
        mode=mode,
        sure=effect.sure,
    )


_MESSAGES = {
    "EO101": "two deliveries can both pass this look-up before either has recorded the message",
    "EO102": "the dedup record is committed apart from the rows that it protects",
    "EO103": "it {what} before the record that would have refused a duplicate",
    "EO104": "the message is marked as done before the work has succeeded; if it fails, the redelivery is dropped",
}


def _report_hole(case: ConsumerCheck, verdict: EffectVerdict) -> None:
    """Report EO101 to EO104, once for each place. EO105 is left to the rule about retention."""
    op = verdict.effect
    assert op is not None
    effect = effect_of(op)
    if verdict.rule == "EO101":
        faulty = verdict.guard
    elif verdict.rule == "EO103":
        faulty = op
    else:
        faulty = verdict.record or verdict.guard
    if faulty is None or verdict.rule == "EO105":
        return
    if any(finding.rule == verdict.rule and finding.place == faulty.at for finding in case.findings):
        return
    mode, remedy = advice_for(effect)
    if verdict.rule == "EO104":
        mode, remedy = "L", "release the mark when the work raises, or use @eo.once, whose claim is a lease"
    labels = [Label(op.at, effect.what)] if faulty is not op else []
    if verdict.record is not None and verdict.record is not faulty and verdict.record is not op:
        labels.append(Label(verdict.record.at, "recorded only here"))
    case.report(
        verdict.rule,
        faulty.at,
        _MESSAGES[verdict.rule].format(what=effect.what),
        labels=tuple(labels),
        trail=case.calls_leading_to(op),
        help=remedy,
        mode=mode,
        confidence=confidence_of_hole(case, op, verdict.guard, verdict.record),
    )
