"""P11 and the holes in a guard: EO101 to EO104. Each effect is asked what stands between it and a duplicate."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from effectonce_lint.findings import Label
from effectonce_lint.python.libraries.message_parts import is_unstable
from effectonce_lint.python.values import Operation

from .consumer_check import TOOL_STORES, ConsumerCheck, advice_for, effect_of, in_same_transaction, is_in_database

#: Effects of a handler that tells somebody that things went wrong; nobody minds those twice.
_ALERTS = ("mail", "message", "publish", "http", "append", "insert", "counter", "enqueue")
_UNDOES = ("payment", "increment")
_TAKES_BACK = re.compile(
    r"(?:^|\.)_*(?:on_|do_|run_|handle_)?(?:compensat\w*|undo|unwind|roll_?back|revert)(?=$|[._A-Z])(?!_on)|\w*Compensat"
).search
#: family: settings that have a failed message delivered again. (Celery's max_retries alone does not.)
_RETRIES = {
    "celery": ("autoretry_for",),
    "dramatiq": ("max_retries", "retry_when", "min_backoff"),
    "huey": ("retries",),
    "taskiq": ("retry_on_error",),
    "procrastinate": ("retry",),
    "rq": ("retry",),
}


@dataclass(slots=True)
class EffectVerdict:
    """The verdict on one effect: the rule that it breaks. Empty: none."""

    rule: str = ""
    effect: Operation | None = None
    guard: Operation | None = None
    """The check or claim with the hole."""
    record: Operation | None = None
    covered: bool = True
    """Whether some guard holds even if the worker dies between the effect and its record."""
    late: bool = False
    """Whether, beside that, a crash between the effect and its record lets a duplicate through (EO103)."""
    note: str = ""


def check_dedup(case: ConsumerCheck) -> list[EffectVerdict]:
    """Report what is wrong with the effects of a consumer, and give all verdicts for the rules about keys."""
    verdicts = []
    for op in case.effects:
        if op.handlers and effect_of(op).category in _ALERTS:
            continue
        verdict = verdict_of(case, op)
        verdict.effect = op
        verdicts.append(verdict)
    _report_unguarded(case, [each for each in verdicts if each.rule == "P11"])
    for verdict in verdicts:
        if verdict.rule and verdict.rule != "P11":
            _report_hole(case, verdict)
        if verdict.late:
            _report_hole(case, replace(verdict, rule="EO103"))
    return verdicts


# -- the decision


def verdict_of(case: ConsumerCheck, op: Operation) -> EffectVerdict:
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
    if loose:  # the answer of a SET without NX is looked at: it is always yes
        return EffectVerdict("EO105" if loose[0].store in ("redis", "cache") else "P11", guard=loose[0], covered=False)
    for check in (guard for guard in guards if guard.kind == "read"):
        verdict = _verdict_for_check(case, op, check)
        if verdict is not None:
            return verdict
    return _verdict_without_guard(case, op)


def _verdict_for_claim(case: ConsumerCheck, op: Operation, claims: list[Operation]) -> EffectVerdict:
    """An atomic claim stands before the effect: what if the worker dies, or the work fails, after it?"""
    effect = effect_of(op)
    outcomes = []
    for claim in claims:
        if not is_in_database(claim):
            again = _requests_redelivery(case) or (effect.in_database and _errors_redeliver(case))
            lost = again and not _is_claim_released(case, claim, op) and not _is_claim_completed(case, claim, op)
            outcomes.append(EffectVerdict("EO104", guard=claim) if lost else EffectVerdict())
        elif in_same_transaction(claim, op):
            outcomes.append(EffectVerdict(covered=effect.in_database))
        elif _is_claim_completed(case, claim, op) or _is_claim_released(case, claim, op):
            outcomes.append(EffectVerdict())
        elif not claim.dedup and claim.kind != "claim":  # a state of the business that was compared and set
            lost = _requests_redelivery(case) and not effect.in_database and effect.category != "publish"
            outcomes.append(EffectVerdict("EO104", guard=claim) if lost else EffectVerdict())
        elif effect.in_database and is_in_database(op):
            outcomes.append(EffectVerdict("EO102", guard=claim, record=claim))
        elif effect.category == "publish":
            outcomes.append(EffectVerdict())  # that is EO401
        else:
            outcomes.append(EffectVerdict("EO104", guard=claim))
    return next((each for each in outcomes if not each.rule), outcomes[0])


def _requests_redelivery(case: ConsumerCheck) -> bool:
    """Whether the consumer requests a redelivery when the work fails, so that a mark left behind would drop it."""
    if any(op.kind in ("retry", "nack") for op in case.ops):
        return True
    settings = case.consumer.settings
    words = _RETRIES.get(case.consumer.family, ())
    return any(word in settings and settings[word].literal not in (0, None, False) for word in words)


def _errors_redeliver(case: ConsumerCheck) -> bool:
    """Whether an error of the work, by itself, has the message delivered again."""
    return case.consumer.acks == "explicit" or case.consumer.family in ("webhook", "lambda")


def _is_claim_released(case: ConsumerCheck, claim: Operation, op: Operation) -> bool:
    """Whether the mark is taken away again when the work fails."""
    return any(
        each.kind == "unmark"
        and each.seq > op.seq
        and (each.handlers or each.final or each.guards)
        and _in_same_location(each, claim)
        for each in case.ops
    )


def _is_claim_completed(case: ConsumerCheck, claim: Operation, op: Operation) -> bool:
    """Whether the claim is a state that goes on: pending, then done (an intent)."""
    return any(
        each is not claim
        and each.kind in ("mark", "write")
        and each.seq > op.seq
        and _in_same_location(each, claim)
        and not each.handlers
        for each in case.ops
    )


def _in_same_location(first: Operation, second: Operation) -> bool:
    if first.location == second.location:
        return True
    if {first.store, second.store} <= {"orm", "entity"}:
        return first.location.partition(".")[0] == second.location.partition(".")[0]
    return False


def _verdict_for_check(case: ConsumerCheck, op: Operation, check: Operation) -> EffectVerdict | None:
    """A look-up that skips duplicates stands before the effect. None: it is a condition of the business."""
    records = [each for each in case.records if each is not op and _records_check(each, check)]
    own = _records_check(op, check)
    if not records and not own:
        return EffectVerdict() if check.dedup else None
    effect = effect_of(op)
    locked = check.locked or op.locks > 0
    before = [each for each in records if case.trace.precedes(each, op) and case.trace.precedes(check, each)]
    if before:
        return _verdict_for_early_mark(case, op, check, before[0], locked)
    if check.store == "memory":
        return EffectVerdict(
            "P11",
            guard=check,
            covered=False,
            note=f"only `{check.location}`, in this process's memory, remembers; a restart forgets it",
        )
    after = [each for each in records if case.trace.precedes(op, each)]
    if not after and not own:
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
    case: ConsumerCheck, op: Operation, check: Operation, record: Operation, locked: bool
) -> EffectVerdict:
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


def _records_check(record: Operation, check: Operation) -> bool:
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


def _verdict_without_guard(case: ConsumerCheck, op: Operation) -> EffectVerdict:
    """Nothing stands before the effect; perhaps a record comes after it."""
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


# -- the words


def _report_unguarded(case: ConsumerCheck, verdicts: list[EffectVerdict]) -> None:
    consumer = case.consumer
    undoing = [each for each in verdicts if each.effect is not None and is_compensation(case, each.effect)]
    for verdict in undoing:
        assert verdict.effect is not None
        _report_compensation(case, verdict.effect)
    ops = [each.effect for each in verdicts if each.effect is not None and each not in undoing]
    if not ops or (consumer.family == "saga"):
        return
    first = next((op for op in ops if effect_of(op).sure), ops[0])
    mode, help_ = advice_for(effect_of(first), first)
    labels = tuple(Label(op.at, f"{effect_of(op).what}") for op in ops[:6])
    more = f", and {len(ops) - 1} more effect{'s' if len(ops) > 2 else ''}" if len(ops) > 1 else ""
    note = next((each.note for each in verdicts if each.note), "") or _near_guard_hint(case, first)
    case.report(
        "P11",
        consumer.at,
        f"{case.who} {effect_of(first).what} again whenever its message is delivered again{more}",
        labels=labels,
        trail=case.calls_leading_to(first),
        note=note,
        help=help_,
        mode=mode,
        sure=any(effect_of(op).sure for op in ops),
    )


def _near_guard_hint(case: ConsumerCheck, op: Operation) -> str:
    """Describe code that looks like a guard but does not work as one."""
    if op.locks:
        return "a lock keeps two deliveries apart, but lets both through one after the other"
    for record in case.ops:
        if record.kind == "mark" and record.dedup and record.ignored_conflict and case.trace.precedes(record, op):
            return f"line {record.at.line} records the message, but no code checks whether it was there already"
    return ""


def is_compensation(case: ConsumerCheck, op: Operation) -> bool:
    """Whether an effect takes back what a step did: after it failed, or in code that says it is there for that."""
    if case.consumer.family == "saga" or any(map(_TAKES_BACK, op.trail)):
        return effect_of(op).category in (*_UNDOES, "insert", "http", "counter")
    return bool(op.handlers) and effect_of(op).category in _UNDOES


def _report_compensation(case: ConsumerCheck, op: Operation) -> None:
    effect = effect_of(op)
    mode, help_ = advice_for(effect, op)
    case.report(
        "EO402",
        op.at,
        f"undoing a step {effect.what} again each time that it is run again",
        trail=case.calls_leading_to(op),
        help=help_,
        mode=mode,
        sure=effect.sure,
    )


_WORDS = {
    "EO101": "two deliveries can both pass this look-up before either has recorded the message",
    "EO102": "the dedup record is committed apart from the rows that it protects",
    "EO103": "it {what} before the record that would have refused a duplicate",
    "EO104": "the message is marked as done before the work has succeeded; if it fails, the redelivery is dropped",
    "EO105": "this SET has no NX, so it does not tell the first delivery from the second",
}


def _report_hole(case: ConsumerCheck, verdict: EffectVerdict) -> None:
    op = verdict.effect
    assert op is not None
    effect = effect_of(op)
    at = verdict.guard if verdict.rule in ("EO101",) else verdict.record or verdict.guard
    if verdict.rule == "EO103":
        at = op
    if at is None or verdict.rule == "EO105":
        return  # the rule about Redis looks at all keys by itself
    mode, help_ = advice_for(effect, op)
    labels = [Label(op.at, f"{effect.what}")] if at is not op else []
    if verdict.record is not None and verdict.record is not at and verdict.record is not op:
        labels.append(Label(verdict.record.at, "recorded only here"))
    already = any(each.rule == verdict.rule and each.place == at.at for each in case.findings)
    if not already:
        case.report(
            verdict.rule,
            at.at,
            _WORDS[verdict.rule].format(what=effect.what),
            labels=tuple(labels),
            trail=case.calls_leading_to(op),
            help=help_
            if verdict.rule != "EO104"
            else "release the mark when the work raises, or use @eo.once, whose claim is a lease",
            mode=mode if verdict.rule != "EO104" else "L",
        )
