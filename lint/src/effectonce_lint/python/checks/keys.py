"""EO301 to EO304: keys that do not identify the operation."""

from __future__ import annotations

import ast
import re

from effectonce_lint.findings import Fix, Place
from effectonce_lint.python.taints import DIGEST, OFFSET, STREAM_SEQUENCE, taint_details
from effectonce_lint.python.values import OperationStore, TracedOperation, Value

from .confidence import confidence_of_key, confidence_of_place
from .consumer_check import TOOL_STORES, ConsumerCheck, effect_of, is_in_database
from .dedup import EffectVerdict, is_compensation
from .edits import add_argument

#: Fields that describe the request, and fields that name its owner. Together they still do not tell two equal requests
#: apart.
_CONTENT_FIELD = re.compile(
    r"amount|price|total|sum|quantity|qty|currency|sku|product|item|email|phone|name|body|text|subject|title|address"
    r"|type|kind|status|date|day|description|message$|content"
    r"|(?:^|_)(?:cents|pence|money|value|units?|points|credits?|count|weight|litres?|km|kg|kwh|fee|rate|plan|tier|level"
    r"|size|colou?r|reason|note|memo|comment|template|seats)(?:$|_)",
    re.IGNORECASE,
)
_OWNER_FIELD = re.compile(
    r"customer|user|account|tenant|merchant|client|member|owner|buyer|seller|recipient", re.IGNORECASE
)
_ID_NAME = re.compile(
    r"(?:^|_)(?:message|msg|event|payment|idempotency|request|order|transaction|charge|invoice|operation)_(?:id|key)$"
)


def check_keys(case: ConsumerCheck, verdicts: list[EffectVerdict]) -> None:
    """Report the keys that do not identify the operation, and the calls that lack one."""
    for op, key, name in _collect_keys(case, verdicts):
        _check_key(case, op, key, name)
    for verdict in verdicts:
        _report_missing_key(case, verdict)


def _collect_keys(case: ConsumerCheck, verdicts: list[EffectVerdict]) -> list[tuple[TracedOperation, Value, str]]:
    """Every key that deduplicates something, each once: the keys of guards, and those that providers get."""
    recorded = {(op.store, op.location) for op in case.ops if op.kind in ("mark", "claim")}
    all_guards = dict.fromkeys(guard for op in case.ops for guard in op.guards)
    guards = [guard for guard in all_guards if _is_dedup_guard(guard, recorded)]
    guards += [verdict.record for verdict in verdicts if verdict.record is not None]
    guards += [op for op in case.ops if op.kind == "guard"]
    uses = [(op, op.key, "the dedup key") for op in guards if op.key is not None]
    for op in case.effects:
        effect = effect_of(op)
        if effect.key is not None and effect.category not in ("publish", "enqueue", "insert", "increment"):
            uses.append((op, effect.key, "the idempotency key"))
    by_text: dict[str, tuple[TracedOperation, Value, str]] = {}
    for op, key, name in uses:
        by_text.setdefault(key.text, (op, key, name))
    return list(by_text.values())


def _is_dedup_guard(guard: TracedOperation, recorded: set[tuple[OperationStore, str]]) -> bool:
    """Whether a guard is there to detect duplicates, rather than a condition of the business."""
    if guard.kind in ("guard", "claim") or guard.dedup or guard.store in TOOL_STORES:
        return True
    if guard.kind == "mark" and guard.atomic:
        return True
    return guard.kind == "read" and (guard.store, guard.location) in recorded


def _check_key(case: ConsumerCheck, op: TracedOperation, key: Value, name: str) -> None:
    """Report what is wrong with ``key``. ``name``: what the message calls it."""
    unstable, attempt = taint_details(key.taint, "unstable"), taint_details(key.taint, "attempt")
    fields = taint_details(key.taint, "field")
    if unstable == [OFFSET] and op.kind == "mark" and is_in_database(op) and not op.ignored_conflict:
        # the consumer stores the offset it has read up to in the transaction of the effect: there the offset is right
        unstable = []
    mode = ""
    if attempt:
        rule, mode = "EO304", "K"
        problem = f"is made from {attempt[0]}, so each attempt has another one"
        remedy = "make the key once, from the message's own id, and hand the same one to every attempt"
    elif unstable and op.retrying:
        rule, mode = "EO304", "K"
        problem = f"is made again by each attempt ({unstable[0]}), so each attempt can succeed"
        remedy = "make the key before the first attempt, and hand the same one to all"
    elif unstable:
        rule = "EO301"
        problem = f"is made from {unstable[0]}, which {_explain_change(unstable[0])}"
        remedy = "take the id that the producer gave the message, or a business key"
    elif (DIGEST in key.taint and all(map(_is_unspecific, fields))) or _lacks_occurrence(fields):
        rule = "EO302"
        source = "is a hash of the payload" if DIGEST in key.taint else f"is made of {' and '.join(fields)}"
        problem = f"{source} alone: two honest identical requests count as one"
        remedy = "put the producer's message id into the key"
    else:
        return
    message = f"{name} {problem}"
    confidence = confidence_of_key(op)
    trail = case.calls_leading_to(op)
    case.report(rule, _place_of_key(op), message, trail=trail, help=remedy, mode=mode, confidence=confidence)


def _explain_change(part: str) -> str:
    """Why the key changes with the next delivery."""
    if part.startswith("the broker's") or part in (OFFSET, STREAM_SEQUENCE):
        return "a resend, a redrive or a relay changes"
    return "is another one for each delivery of the same message"


def _is_unspecific(field: str) -> bool:
    return bool(_CONTENT_FIELD.search(field) or _OWNER_FIELD.search(field))


def _lacks_occurrence(fields: list[str]) -> bool:
    """Whether a key names owner and content of a request, but nothing that tells two equal requests apart."""
    return len(fields) > 1 and all(map(_is_unspecific, fields)) and any(map(_CONTENT_FIELD.search, fields))


def _place_of_key(op: TracedOperation) -> Place:
    """Where the key is written, if it is an argument of the call."""
    if not isinstance(op.node, ast.Call) or op.module is None:
        return op.at
    for keyword in op.node.keywords:
        if keyword.arg in ("idempotency_key", "key"):
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
        confidence=confidence_of_place(op),
    )


def _fix_missing_key(op: TracedOperation) -> Fix | None:
    """Add `idempotency_key=` where a local of the consumer itself holds an id of the message."""
    effect = effect_of(op)
    if effect.takes_key != "idempotency_key" or len(op.trail) > 1 or not isinstance(op.node, ast.Call):
        return None
    name = next((name for name in effect.names_at_hand if _ID_NAME.search(name)), "")
    if not name or any(keyword.arg in (None, "idempotency_key") for keyword in op.node.keywords):
        return None
    # the name of the resource (stripe.Refund.create → refund): a refund must not repeat a charge's key
    action = op.text.split(".")[-2].lower() if "." in op.text else op.text
    argument = f'idempotency_key=f"{action}:{{{name}}}"'
    return add_argument(op, argument, f"add {argument}")
