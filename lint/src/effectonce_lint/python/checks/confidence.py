"""How sure a finding is, from 0 to 1: from the effect, from what delivers the message, and from the calls in between.

The figures are those of real code: what readers of other people's handlers agreed with is shown by default, and what
they mostly did not (rows that a task creates, dual writes, swallowed errors) is left to `--all`. `lint/tests/real`
measures them.
"""

from __future__ import annotations

import re

from effectonce_lint.python.values import TracedOperation

from .consumer_check import ConsumerCheck, effect_of, identifies_message

_BY_EFFECT = {
    "payment": 0.97,
    "mail": 0.96,
    "message": 0.96,
    "call": 0.95,
    "publish": 0.9,
    "counter": 0.88,
    "increment": 0.88,
    "http": 0.88,
    "append": 0.7,
    "insert": 0.65,
}
_BY_NAME = 0.9
"""At most so sure is an effect that only the name of a function shows."""
_FROM_OUTSIDE = 0.2
"""How much surer a new row is in a consumer of messages from elsewhere. A task's own application enqueued it, mostly
with the id of a row that exists."""
_TASK_FAMILIES = frozenset(
    {"celery", "dramatiq", "rq", "arq", "taskiq", "huey", "procrastinate", "django", "declared", "agent"}
)
_AFTER_LOOK_UP = 0.15
"""How much less sure a new row is after a look-up in its table, which may look for that row in an unknown way."""
_ACKED_EARLY = 0.05
"""How much less sure everything is in a Celery task that nothing visible delivers again. Celery acks a task before it
runs, unless `acks_late` is set: what is left are retries, and brokers that redeliver what takes too long."""
_PER_CALL = 0.03
"""How much each call between the consumer and the place takes away."""
_UNMISTAKABLE = frozenset({"payment", "mail", "message", "call"})
"""Effects that are what they are however many calls lead to them: each takes away half as much."""
UNSURE = 0.6
"""How sure a finding is that speaks of what the code may well mean to do."""
_HANDS_OVER = re.compile(r"enqueue|job_?queue|task_?queue", re.IGNORECASE).search
"""Names of a project's own functions that enqueue a task."""
_KEYED_BY_MESSAGE = 0.9
_BUSINESS_STATE = 0.84
"""A hole in a check of a state of the business, which keeps an effect outside of the database from being repeated."""
_IN_MEMORY = 0.5


def confidence_of_place(op: TracedOperation) -> float:
    """How sure it is that the consumer comes to ``op``."""
    return _after_calls(1.0, _calls_to(op))


def confidence_of_effect(case: ConsumerCheck, op: TracedOperation) -> float:
    """How sure it is that a second delivery repeats an effect that nothing guards."""
    effect = effect_of(op)
    confidence = _BY_EFFECT.get(effect.category, UNSURE)
    if effect.category == "insert":
        if case.consumer.family not in _TASK_FAMILIES:
            confidence += _FROM_OUTSIDE
        if any(guard.kind == "read" and guard.location == op.location for guard in op.guards):
            confidence -= _AFTER_LOOK_UP
    if effect.category in ("publish", "append") and any(map(_HANDS_OVER, op.trail)):
        confidence = UNSURE  # it enqueues another task, which has to be judged itself
    if not effect.sure:
        confidence = min(confidence, _BY_NAME)
    if case.consumer.family == "celery" and not is_redelivered(case):
        confidence -= _ACKED_EARLY
    return _after_calls(confidence, _calls_to(op) / 2 if effect.category in _UNMISTAKABLE else _calls_to(op))


def confidence_of_hole(
    case: ConsumerCheck, op: TracedOperation, guard: TracedOperation | None, record: TracedOperation | None
) -> float:
    """How sure it is that a guard of the effect ``op`` is meant to stop duplicates, and has a hole."""
    parts = [part for part in (guard, record) if part is not None]
    if any(map(_is_in_memory, parts)):
        confidence = _IN_MEMORY
    elif any(map(is_dedup_record, parts)):
        confidence = _KEYED_BY_MESSAGE
    else:
        confidence = UNSURE if effect_of(op).category in ("insert", "append") else _BUSINESS_STATE
    return _after_calls(confidence, _calls_to(op))


def confidence_of_key(op: TracedOperation) -> float:
    """How sure it is that the key of ``op`` is there to detect duplicates, in a record that outlives the process."""
    if _is_in_memory(op):
        return _IN_MEMORY
    is_meant = op.effect is not None or op.kind in ("guard", "claim") or is_dedup_record(op) or op.atomic
    return _after_calls(_KEYED_BY_MESSAGE if is_meant else UNSURE, _calls_to(op))


def is_dedup_record(op: TracedOperation) -> bool:
    """Whether a record is surely one of handled messages: its name says so, or its key is the message's own id."""
    return op.dedup or identifies_message(op)


def is_redelivered(case: ConsumerCheck) -> bool:
    """Whether a Celery task shows what delivers it again: `acks_late`, of its own or of the application, or retries."""
    settings = case.consumer.settings
    if "acks_late" in settings:
        return settings["acks_late"].literal is not False
    shows_retries = settings.keys() & {"autoretry_for", "max_retries", "retry_kwargs"}
    is_late = any(name in case.settings for name in ("task_acks_late", "CELERY_TASK_ACKS_LATE", "CELERY_ACKS_LATE"))
    return bool(shows_retries) or is_late or any(op.kind == "retry" for op in case.ops)


def _is_in_memory(op: TracedOperation) -> bool:
    return op.store == "memory"


def _calls_to(op: TracedOperation) -> int:
    """How many calls lead from the consumer to ``op``."""
    return max(len(op.trail) - 1, 0)


def _after_calls(confidence: float, calls: float) -> float:
    return round(max(confidence - _PER_CALL * calls, 0.0), 2)
