"""EO301 to EO304: keys that do not say "this is the same operation"."""

from __future__ import annotations

import ast
import re

from effectonce_lint.findings import Fix, Place
from effectonce_lint.python.values import Operation, Value

from .consumer_check import TOOL_STORES, ConsumerCheck, effect_of, is_in_database
from .dedup import EffectVerdict, is_compensation
from .edits import add_argument

#: Fields that say what is wanted, and fields that say who wants it. Neither says which time it is.
_WHAT = re.compile(
    r"amount|price|total|sum|quantity|qty|currency|sku|product|item|email|phone|name|body|text|subject|title|address"
    r"|type|kind|status|date|day|description|message$|content"
    r"|(?:^|_)(?:cents|pence|money|value|units?|points|credits?|count|weight|litres?|km|kg|kwh|fee|rate|plan|tier|level"
    r"|size|colou?r|reason|note|memo|comment|template|seats)(?:$|_)",
    re.IGNORECASE,
)
_WHO = re.compile(r"customer|user|account|tenant|merchant|client|member|owner|buyer|seller|recipient", re.IGNORECASE)
_IDS = re.compile(
    r"(?:^|_)(?:message|msg|event|payment|idempotency|request|order|transaction|charge|invoice|operation)_(?:id|key)$"
)


def check_keys(case: ConsumerCheck, verdicts: list[EffectVerdict]) -> None:
    for op, key, what in _collect_keys(case, verdicts):
        _check_key(case, op, key, what)
    for verdict in verdicts:
        _report_missing_key(case, verdict)


def _collect_keys(case: ConsumerCheck, verdicts: list[EffectVerdict]) -> list[tuple[Operation, Value, str]]:
    """Every key that something is deduplicated by, once: of the guards, and of the providers' calls."""
    recorded = {(op.store, op.location) for op in case.ops if op.kind in ("mark", "claim")}
    guards = [
        each for each in dict.fromkeys(each for op in case.ops for each in op.guards) if _is_dedup_guard(each, recorded)
    ]
    guards += [each.record for each in verdicts if each.record is not None]
    guards += [op for op in case.ops if op.kind == "guard"]
    found = [(op, op.key, "the dedup key") for op in guards if op.key is not None]
    for op in case.effects:
        effect = effect_of(op)
        if effect.key is not None and effect.category not in ("publish", "enqueue", "insert", "increment"):
            found.append((op, effect.key, "the idempotency key"))
    distinct: dict[str, tuple[Operation, Value, str]] = {}
    for each in found:
        distinct.setdefault(each[1].text, each)
    return list(distinct.values())


def _is_dedup_guard(guard: Operation, recorded: set[tuple[str, str]]) -> bool:
    """Whether a guard is one against duplicates, rather than a condition of the business."""
    if guard.kind in ("guard", "claim") or guard.dedup or guard.store in TOOL_STORES:
        return True
    if guard.kind == "mark" and guard.atomic:
        return True
    return guard.kind == "read" and (guard.store, guard.location) in recorded


def _check_key(case: ConsumerCheck, op: Operation, key: Value, what: str) -> None:
    unstable = sorted(each[9:] for each in key.taint if each.startswith("unstable:"))
    attempt = sorted(each[8:] for each in key.taint if each.startswith("attempt:"))
    fields = sorted(each[6:] for each in key.taint if each.startswith("field:"))
    if unstable == ["the offset"] and op.kind == "mark" and is_in_database(op) and not op.ignored_conflict:
        unstable = []  # how far a partition has been read, moved on in the transaction of the effect
    rule, wrong, help_, mode = "", "", "", ""
    if attempt:
        rule, mode = "EO304", "K"
        wrong = f"is made from {attempt[0]}, so each attempt has another one"
        help_ = "make the key once, from the message's own id, and hand the same one to every attempt"
    elif unstable and op.retrying:
        rule, mode = "EO304", "K"
        wrong = f"is made anew by each attempt ({unstable[0]}), so each attempt can succeed"
        help_ = "make the key before the first attempt, and hand the same one to all"
    elif unstable:
        rule = "EO301"
        wrong = f"is made from {unstable[0]}, which {_explain_change(unstable[0])}"
        help_ = "take the id that the producer gave the message, or a business key"
    elif ("digest" in key.taint and all(map(_is_unspecific, fields))) or _lacks_occurrence(fields):
        rule = "EO302"
        made = "is a hash of the payload" if "digest" in key.taint else f"is made of {' and '.join(fields)}"
        wrong = f"{made} alone: two honest identical requests count as one"
        help_ = "put the producer's message id into the key"
    if rule:
        case.report(rule, _place_of_key(op), f"{what} {wrong}", trail=case.calls_leading_to(op), help=help_, mode=mode)


def _explain_change(what: str) -> str:
    """Why a key is another one next time."""
    if what.startswith("the broker's") or what in ("the offset", "the stream sequence"):
        return "a resend, a redrive or a relay changes"
    return "is another one for each delivery of the same message"


def _is_unspecific(field: str) -> bool:
    return bool(_WHAT.search(field) or _WHO.search(field))


def _lacks_occurrence(fields: list[str]) -> bool:
    """Whether a key says who and what, but not which time."""
    return len(fields) > 1 and all(map(_is_unspecific, fields)) and any(map(_WHAT.search, fields))


def _place_of_key(op: Operation) -> Place:
    """Where the key is written, if it is an argument of the call."""
    for keyword in op.node.keywords if isinstance(op.node, ast.Call) and op.module is not None else ():
        if keyword.arg in ("idempotency_key", "key"):
            assert op.module is not None
            return op.module.place(keyword.value)
    return op.at


# -- EO303


def _report_missing_key(case: ConsumerCheck, verdict: EffectVerdict) -> None:
    op = verdict.effect
    assert op is not None
    effect = effect_of(op)
    if not effect.provider or effect.key_given or verdict.covered or is_compensation(case, op):
        return
    case.report(
        "EO303",
        op.at,
        f"{effect.provider} takes an idempotency key, and this call has none",
        trail=case.calls_leading_to(op),
        help=f"pass {effect.takes_key}, the same for every delivery of the message",
        mode="K",
        fix=_fix_missing_key(op),
    )


def _fix_missing_key(op: Operation) -> Fix | None:
    """Add `idempotency_key=` where an id of the message is a plain name at hand, in the consumer's own code."""
    effect = effect_of(op)
    if effect.takes_key != "idempotency_key" or len(op.trail) > 1 or not isinstance(op.node, ast.Call):
        return None
    name = next((name for name in effect.names_at_hand if _IDS.search(name)), "")
    if not name or any(keyword.arg in (None, "idempotency_key") for keyword in op.node.keywords):
        return None
    what = op.text.split(".")[-2].lower() if "." in op.text else op.text  # a refund must not repeat a charge's key
    argument = f'idempotency_key=f"{what}:{{{name}}}"'
    return add_argument(op, argument, f"add {argument}")
