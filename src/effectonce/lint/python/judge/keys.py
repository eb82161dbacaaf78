"""EO301 to EO304 (keys), EO105 and EO106 (how long and how a key is kept)."""

from __future__ import annotations

import ast
import re

from effectonce.lint.findings import Edit, Fix, Label, Place
from effectonce.lint.python.values import Op, Val

from .cases import TOOLS, Case, effect_of
from .dedup import Verdict

#: Fields that say what is ordered, not which order it is.
_VALUES = re.compile(
    r"amount|price|total|sum|quantity|qty|currency|sku|product|item|email|phone|name|body|text|subject|title|address|type|kind"
    r"|status|date|day|description|message$|content",
    re.IGNORECASE,
)
_OWNERS = re.compile(r"customer|user|account|tenant|merchant|client|member|owner|buyer|seller|recipient", re.IGNORECASE)
_IDS = re.compile(
    r"(?:^|_)(?:message|msg|event|payment|idempotency|request|order|transaction|charge|invoice|operation)_(?:id|key)$|^idempotency_key$"
)
FIFTEEN_DAYS = 1296000


def judge(case: Case, verdicts: list[Verdict]) -> None:
    keys = _keys(case)
    for op, key, what in keys:
        _judge_key(case, op, key, what)
    for verdict in verdicts:
        _missing(case, verdict)
    _kept(case, verdicts)


def _keys(case: Case) -> list[tuple[Op, Val, str]]:
    """Every key that something is deduplicated by: of the guards, and of the providers' calls."""
    out: list[tuple[Op, Val, str]] = []
    guards = {id(guard): guard for op in case.ops for guard in op.guards}
    relevant = [guard for guard in guards.values() if _dedups(case, guard)]
    relevant += [op for op in case.ops if op.kind in ("mark", "claim", "read") and op.dedup and id(op) not in guards]
    relevant += [op for op in case.ops if op.kind == "guard" and id(op) not in guards]
    seen: set[str] = set()
    for op in relevant:
        if op.key is not None and op.key.text not in seen:
            seen.add(op.key.text)
            out.append((op, op.key, "the dedup key"))
    for op in case.effects:
        effect = effect_of(op)
        apart = effect.category in ("publish", "enqueue", "insert", "increment")
        if effect.key is not None and not apart and effect.key.text not in seen:
            seen.add(effect.key.text)
            out.append((op, effect.key, "the idempotency key"))
    return out


def _dedups(case: Case, guard: Op) -> bool:
    """Whether a guard is one against duplicates, rather than a condition of the business."""
    if guard.kind in ("guard", "claim") or guard.dedup or guard.store in TOOLS:
        return True
    if guard.kind == "mark" and guard.atomic:
        return True
    return guard.kind == "read" and any(
        op.kind in ("mark", "claim") and op.store == guard.store and op.location == guard.location for op in case.ops
    )


def _judge_key(case: Case, op: Op, key: Val, what: str) -> None:
    unstable = sorted(each[9:] for each in key.taint if each.startswith("unstable:"))
    attempt = sorted(each[8:] for each in key.taint if each.startswith("attempt:"))
    at = _key_place(op, key)
    if attempt:
        case.found(
            "EO304",
            at,
            f"{what} is made from {attempt[0]}, so each attempt has another one",
            trail=case.trail_to(op),
            help="make the key once, from the message's own id, and hand the same one to every attempt",
            mode="K",
        )
    elif unstable and op.retrying:
        case.found(
            "EO304",
            at,
            f"{what} is made anew by each attempt ({unstable[0]}), so each attempt can succeed",
            trail=case.trail_to(op),
            help="make the key before the first attempt, and hand the same one to all",
            mode="K",
        )
    elif unstable:
        case.found(
            "EO301",
            at,
            f"{what} is made from {unstable[0]}, so it differs for each delivery of the same message",
            trail=case.trail_to(op),
            help="take the id that the producer gave the message, or a business key",
            mode="",
        )
    elif "digest" in key.taint and not _has_id(key):
        case.found(
            "EO302",
            at,
            f"{what} is a hash of the payload alone: two honest identical requests count as one",
            trail=case.trail_to(op),
            help="put the producer's message id into the key",
            mode="",
        )
    elif (fields := _fields(key)) and _says_only_what(fields):
        case.found(
            "EO302",
            at,
            f"{what} is made of {' and '.join(fields)} only: two honest identical requests count as one",
            trail=case.trail_to(op),
            help="put the producer's message id into the key",
            mode="",
        )


def _fields(key: Val) -> list[str]:
    return sorted(each[6:] for each in key.taint if each.startswith("field:"))


def _has_id(key: Val) -> bool:
    return any(not _VALUES.search(each) and not _OWNERS.search(each) for each in _fields(key))


def _says_only_what(fields: list[str]) -> bool:
    """Whether a key says who and what, but not which time."""
    return (
        len(fields) > 1
        and all(_VALUES.search(each) or _OWNERS.search(each) for each in fields)
        and any(_VALUES.search(each) for each in fields)
    )


def _key_place(op: Op, key: Val) -> Place:
    """Where the key is written, if it is an argument of the call."""
    node = op.node
    if isinstance(node, ast.Call) and op.module is not None:
        for keyword in node.keywords:
            if keyword.arg in ("idempotency_key", "key", "ConditionExpression"):
                return op.module.place(keyword.value)
    return op.at


# -- EO303


def _missing(case: Case, verdict: Verdict) -> None:
    op = verdict.effect
    assert op is not None
    effect = effect_of(op)
    if not effect.provider or effect.key_given or verdict.covered or op.handlers or case.consumer.family == "saga":
        return
    case.found(
        "EO303",
        op.at,
        f"{effect.provider} takes an idempotency key, and this call has none",
        trail=case.trail_to(op),
        help=f"pass {effect.takes_key}: the same for every delivery of the message",
        mode="K",
        fix=_with_key(op),
    )


def _with_key(op: Op) -> Fix | None:
    """Add `idempotency_key=` where an id of the message is a plain name at hand, in the consumer's own code."""
    node, module = op.node, op.module
    if (
        not isinstance(node, ast.Call)
        or module is None
        or effect_of(op).takes_key != "idempotency_key"
        or len(op.trail) > 1
    ):
        return None
    name = next((name for name in effect_of(op).names_at_hand if _IDS.search(name)), "")
    if not name or any(keyword.arg is None or keyword.arg == "idempotency_key" for keyword in node.keywords):
        return None
    return _argument(op, f"idempotency_key={name}", f"add idempotency_key={name}")


def _argument(op: Op, text: str, words: str) -> Fix | None:
    """An argument more, at the end of a call."""
    node, module = op.node, op.module
    if not isinstance(node, ast.Call) or module is None:
        return None
    last = max(
        [*node.args, *(each.value for each in node.keywords)],
        key=lambda each: (each.end_lineno or 0, each.end_col_offset or 0),
        default=None,
    )
    if last is None:
        return None
    end = module.place(last)
    spot = Place(end.path, end.end_line, end.end_column, end.end_line, end.end_column)
    return Fix(words, (Edit(spot, f", {text}"),))


# -- EO105, EO106


def _kept(case: Case, verdicts: list[Verdict]) -> None:
    loose = {id(each.record or each.guard) for each in verdicts if each.rule == "EO105"}
    window = _window(case)
    guards = {id(guard) for op in case.ops for guard in op.guards}
    for op in case.ops:
        if op.kind not in ("mark", "effect") or op.store not in ("redis", "cache"):
            continue
        paired = any(
            each.kind == "read" and each.store == op.store and each.location == op.location for each in case.ops
        )
        if not (id(op) in guards or paired or id(op) in loose or (op.dedup and op.kind == "mark")):
            continue
        if id(op) in loose and case.effects:
            fix = _argument(op, "nx=True", "add nx=True") if id(op) in guards and op.text.endswith(".set") else None
            case.found(
                "EO105",
                op.at,
                _LOOSE if op.expires is not False else f"{_LOOSE}; and the key never expires",
                help="SET key value NX EX seconds, and look at the answer",
                mode="L",
                fix=fix,
            )
        elif op.expires is False and not _given_back_always(case, op):
            short = op.text.rpartition(".")[2]
            fix = _argument(op, f"ex={FIFTEEN_DAYS}", f"add ex={FIFTEEN_DAYS} (15 days)") if short == "set" else None
            case.found(
                "EO105",
                op.at,
                "this dedup key never expires: Redis fills up, and then evicts what it should keep",
                help="give it an expiry longer than the redelivery window (ex=1296000 is 15 days)",
                mode="L",
                fix=fix,
            )
        if op.seconds is not None and window is not None and op.seconds < window[0]:
            case.found(
                "EO106",
                op.at,
                f"the dedup record is kept for {_span(op.seconds)}, but the message can come back for "
                f"{_span(window[0])}",
                labels=(Label(window[2], window[1]),) if window[2] is not None else (),
                help="keep it longer than retries, visibility timeout, dead-letter queue and redrive together",
                mode="L",
            )


_LOOSE = "this dedup key is set without NX, so two deliveries can both find it missing"


def _given_back_always(case: Case, op: Op) -> bool:
    return False


def _window(case: Case) -> tuple[float, str, Place | None] | None:
    """How long the message can come back, as far as it is written down: seconds, what says so, where."""
    words = case.consumer.settings
    at = (
        case.consumer.registered_in.place(case.consumer.registration)
        if case.consumer.registered_in and case.consumer.registration
        else None
    )
    found: list[tuple[float, str, Place | None]] = []

    def number(name: str) -> float | None:
        value = words.get(name)
        literal = value.literal if value is not None else None
        return float(literal) if isinstance(literal, int | float) and not isinstance(literal, bool) else None

    retries, delay = number("max_retries"), number("default_retry_delay")
    if delay is None:
        delays = [
            op.key.fields["countdown"].literal
            for op in case.ops
            if op.kind == "retry" and op.key and op.key.fields and "countdown" in op.key.fields
        ]
        delay = max((float(each) for each in delays if isinstance(each, int | float)), default=None)
        if retries is None and delay is not None:
            retries = 3.0  # Celery's default
    if retries and delay:
        found.append((retries * delay, f"{int(retries)} retries, {_span(delay)} apart", at))
    for name, words_ in (("VisibilityTimeout", "visibility timeout"), ("visibility_timeout", "visibility timeout")):
        if (seconds := number(name)) is not None:
            found.append((seconds, f"{words_} of {_span(seconds)}", at))
    for name, (value, place) in case.settings.items():
        options = value.fields or {}
        if name in ("broker_transport_options", "visibility_timeout"):
            inner = options.get("visibility_timeout", value)
            if isinstance(inner.literal, int | float) and case.consumer.family == "celery":
                found.append((float(inner.literal), f"visibility timeout of {_span(float(inner.literal))}", place))
    return max(found, default=None, key=lambda each: each[0])


def _span(seconds: float) -> str:
    for size, name in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size and seconds % size == 0:
            count = int(seconds // size)
            return f"{count} {name}{'s' if count != 1 else ''}"
    return f"{seconds:g} seconds"
