"""P11 and the holes in a guard: EO101 to EO104. Each effect is asked what stands between it and a duplicate."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from effectonce_lint.findings import Label
from effectonce_lint.python.values import Op, Val

from .consumer_check import TOOLS, Case, advice, effect_of, same_transaction, stored_in_database

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
class Verdict:
    """What is wrong with one effect. An empty rule: nothing."""

    rule: str = ""
    effect: Op | None = None
    guard: Op | None = None
    """The check or claim with the hole."""
    record: Op | None = None
    covered: bool = True
    """Whether some guard holds even if the worker dies between the effect and its record."""
    late: bool = False
    """Whether, beside that, a crash between the effect and its record lets a duplicate through (EO103)."""
    note: str = ""


def judge(case: Case) -> list[Verdict]:
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


def verdict_of(case: Case, op: Op) -> Verdict:
    effect = effect_of(op)
    if effect.category == "enqueue":
        return Verdict()
    if effect.key_given and not (effect.category == "publish" and effect.key is not None and made_up(effect.key)):
        return Verdict()
    guards = list(dict.fromkeys(op.guards))
    if any(guard.store in TOOLS for guard in guards):
        return Verdict()
    claims = [
        guard
        for guard in guards
        if guard is not op and guard.atomic and guard.kind in ("claim", "mark", "unmark", "effect")
    ]
    if claims:
        return _claimed(case, op, claims)
    loose = [guard for guard in guards if guard.kind == "mark" and not guard.atomic]
    if loose:  # the answer of a SET without NX is looked at: it is always yes
        return Verdict("EO105" if loose[0].store in ("redis", "cache") else "P11", guard=loose[0], covered=False)
    for check in (guard for guard in guards if guard.kind == "read"):
        verdict = _checked(case, op, check)
        if verdict is not None:
            return verdict
    return _unchecked(case, op)


def _claimed(case: Case, op: Op, claims: list[Op]) -> Verdict:
    """An atomic claim stands before the effect: what if the worker dies, or the work fails, after it?"""
    effect = effect_of(op)
    outcomes = []
    for claim in claims:
        if not stored_in_database(claim):
            again = _retried(case) or (effect.in_database and _comes_back(case))
            lost = again and not _given_back(case, claim, op) and not _followed_up(case, claim, op)
            outcomes.append(Verdict("EO104", guard=claim) if lost else Verdict())
        elif same_transaction(claim, op):
            outcomes.append(Verdict(covered=effect.in_database))
        elif _followed_up(case, claim, op) or _given_back(case, claim, op):
            outcomes.append(Verdict())
        elif not claim.dedup and claim.kind != "claim":  # a state of the business that was compared and set
            lost = _retried(case) and not effect.in_database and effect.category != "publish"
            outcomes.append(Verdict("EO104", guard=claim) if lost else Verdict())
        elif effect.in_database and stored_in_database(op):
            outcomes.append(Verdict("EO102", guard=claim, record=claim))
        elif effect.category == "publish":
            outcomes.append(Verdict())  # that is EO401
        else:
            outcomes.append(Verdict("EO104", guard=claim))
    return next((each for each in outcomes if not each.rule), outcomes[0])


def _retried(case: Case) -> bool:
    """Whether the consumer asks for its message again when the work fails, so that a mark left behind drops it."""
    if any(op.kind in ("retry", "nack") for op in case.ops):
        return True
    settings = case.consumer.settings
    words = _RETRIES.get(case.consumer.family, ())
    return any(word in settings and settings[word].literal not in (0, None, False) for word in words)


def _comes_back(case: Case) -> bool:
    """Whether an error of the work, by itself, has the message delivered again."""
    return case.consumer.acks == "explicit" or case.consumer.family in ("webhook", "lambda")


def _given_back(case: Case, claim: Op, op: Op) -> bool:
    """Whether the mark is taken away again when the work fails."""
    return any(
        each.kind == "unmark"
        and each.seq > op.seq
        and (each.handlers or each.final or each.guards)
        and _same_place(each, claim)
        for each in case.ops
    )


def _followed_up(case: Case, claim: Op, op: Op) -> bool:
    """Whether the claim is a state that goes on: pending, then done (an intent)."""
    return any(
        each is not claim
        and each.kind in ("mark", "write")
        and each.seq > op.seq
        and _same_place(each, claim)
        and not each.handlers
        for each in case.ops
    )


def _same_place(first: Op, second: Op) -> bool:
    if first.location == second.location:
        return True
    if {first.store, second.store} <= {"orm", "entity"}:
        return first.location.partition(".")[0] == second.location.partition(".")[0]
    return False


def _checked(case: Case, op: Op, check: Op) -> Verdict | None:
    """A look-up that skips duplicates stands before the effect. None: it is a condition of the business."""
    records = [each for each in case.records if each is not op and _records(each, check)]
    own = _records(op, check)
    if not records and not own:
        return Verdict() if check.dedup else None
    effect = effect_of(op)
    locked = check.locked or op.locks > 0
    before = [each for each in records if case.trace.precedes(each, op) and case.trace.precedes(check, each)]
    if before:
        return _marked_first(case, op, check, before[0], locked)
    if check.store == "memory":
        return Verdict(
            "P11",
            guard=check,
            covered=False,
            note=f"only `{check.location}`, in this process's memory, remembers; a restart forgets it",
        )
    after = [each for each in records if case.trace.precedes(op, each)]
    if not after and not own:
        return Verdict() if check.dedup else None
    if locked:
        return Verdict(covered=effect.in_database)
    if not after:
        return Verdict("EO101", guard=check, record=op, covered=False)
    record = after[0]
    if effect.in_database and stored_in_database(op) and stored_in_database(record):
        if record.store == "entity" or record.kind == "write":
            return Verdict("EO101", guard=check, record=record, covered=False)
        if not same_transaction(op, record):
            return Verdict("EO102", guard=check, record=record, covered=False, late=True)
        if record.ignored_conflict or record.kind == "effect":
            return Verdict("EO101", guard=check, record=record, covered=False)
        return Verdict()
    return Verdict("EO101", guard=check, record=record, covered=False, late=True)


def _marked_first(case: Case, op: Op, check: Op, record: Op, locked: bool) -> Verdict:
    effect = effect_of(op)
    if stored_in_database(record):
        if locked:
            return Verdict(covered=effect.in_database)
        if record.store == "entity" or record.kind == "write" or (same_transaction(record, op) and effect.in_database):
            return Verdict("EO101", guard=check, record=record, covered=False)
        return Verdict("EO104", guard=check, record=record, covered=False)
    if locked:
        return Verdict("EO104", guard=check, record=record) if not _given_back(case, record, op) else Verdict()
    if record.store in ("redis", "cache") and not record.atomic:
        return Verdict("EO105", guard=check, record=record, covered=False)
    if _given_back(case, record, op):
        return Verdict("EO101", guard=check, record=record, covered=False)
    return Verdict("EO104", guard=check, record=record, covered=False)


def _records(record: Op, check: Op) -> bool:
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


def _unchecked(case: Case, op: Op) -> Verdict:
    """Nothing stands before the effect; perhaps a record comes after it."""
    effect = effect_of(op)
    for record in case.ops:
        if record.kind != "claim" or not case.trace.precedes(op, record) or not (record.dedup or record.tries):
            continue
        if effect.in_database and stored_in_database(op) and stored_in_database(record):
            return Verdict() if same_transaction(op, record) else Verdict("EO102", record=record, covered=False)
        return Verdict("EO103", record=record, covered=False)
    return Verdict("P11", covered=False)


def made_up(key: Val) -> bool:
    return any(each.startswith("unstable:") for each in key.taint)


# -- the words


def _report_unguarded(case: Case, verdicts: list[Verdict]) -> None:
    consumer = case.consumer
    undoing = [each for each in verdicts if each.effect is not None and undoes(case, each.effect)]
    for verdict in undoing:
        assert verdict.effect is not None
        _report_compensation(case, verdict.effect)
    ops = [each.effect for each in verdicts if each.effect is not None and each not in undoing]
    if not ops or (consumer.family == "saga"):
        return
    first = next((op for op in ops if effect_of(op).sure), ops[0])
    mode, help_ = advice(effect_of(first), first)
    labels = tuple(Label(op.at, f"{effect_of(op).what}") for op in ops[:6])
    more = f", and {len(ops) - 1} more effect{'s' if len(ops) > 2 else ''}" if len(ops) > 1 else ""
    note = next((each.note for each in verdicts if each.note), "") or _hint(case, first)
    case.found(
        "P11",
        consumer.at,
        f"{case.who} {effect_of(first).what} again whenever its message is delivered again{more}",
        labels=labels,
        trail=case.trail_to(first),
        note=note,
        help=help_,
        mode=mode,
        sure=any(effect_of(op).sure for op in ops),
    )


def _hint(case: Case, op: Op) -> str:
    """What looks like a guard and is none."""
    if op.locks:
        return "a lock keeps two deliveries apart, but lets both through one after the other"
    for record in case.ops:
        if record.kind == "mark" and record.dedup and record.ignored_conflict and case.trace.precedes(record, op):
            return f"line {record.at.line} records the message, but nobody looks whether it was there already"
    return ""


def undoes(case: Case, op: Op) -> bool:
    """Whether an effect takes back what a step did: after it failed, or in code that says it is there for that."""
    if case.consumer.family == "saga" or any(map(_TAKES_BACK, op.trail)):
        return effect_of(op).category in (*_UNDOES, "insert", "http", "counter")
    return bool(op.handlers) and effect_of(op).category in _UNDOES


def _report_compensation(case: Case, op: Op) -> None:
    effect = effect_of(op)
    mode, help_ = advice(effect, op)
    case.found(
        "EO402",
        op.at,
        f"undoing a step {effect.what} again each time that it is run again",
        trail=case.trail_to(op),
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


def _report_hole(case: Case, verdict: Verdict) -> None:
    op = verdict.effect
    assert op is not None
    effect = effect_of(op)
    at = verdict.guard if verdict.rule in ("EO101",) else verdict.record or verdict.guard
    if verdict.rule == "EO103":
        at = op
    if at is None or verdict.rule == "EO105":
        return  # the rule about Redis looks at all keys by itself
    mode, help_ = advice(effect, op)
    labels = [Label(op.at, f"{effect.what}")] if at is not op else []
    if verdict.record is not None and verdict.record is not at and verdict.record is not op:
        labels.append(Label(verdict.record.at, "recorded only here"))
    already = any(each.rule == verdict.rule and each.place == at.at for each in case.findings)
    if not already:
        case.found(
            verdict.rule,
            at.at,
            _WORDS[verdict.rule].format(what=effect.what),
            labels=tuple(labels),
            trail=case.trail_to(op),
            help=help_
            if verdict.rule != "EO104"
            else "release the mark when the work raises, or use @eo.once, whose claim is a lease",
            mode=mode if verdict.rule != "EO104" else "L",
        )
