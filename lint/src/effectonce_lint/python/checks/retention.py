"""EO105 and EO106: keys in Redis or a cache that are not set atomically, never expire, or expire too early."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from effectonce_lint.durations import format_duration
from effectonce_lint.findings import Fix, Label, Place
from effectonce_lint.python.values import TracedOperation, Value

from .confidence import confidence_of_key, is_dedup_record
from .consumer_check import ConsumerCheck
from .dedup import EffectVerdict
from .edits import add_argument

FIFTEEN_DAYS_SECONDS = 15 * 86_400
_CELERY_DEFAULT_RETRIES = 3.0
_RETRY_COUNT_SETTINGS = ("max_retries", "max_attempts", "max", "retries")
_RETRY_DELAY_SETTINGS = ("default_retry_delay", "countdown", "retry_delay", "wait", "min_backoff", "interval")
_MAX_BACKOFFS = 64  # retries whose delays are added up; each is twice the one before
_NOT_ATOMIC = "this dedup key is set without NX, so two deliveries can both find it missing"
_NO_EXPIRY = "this dedup key never expires: Redis fills up, and then evicts what it should keep"


def check_retention(case: ConsumerCheck, verdicts: list[EffectVerdict]) -> None:
    """Report the dedup keys that are set without NX, never expire, or expire before the last redelivery."""
    without_nx = {id(verdict.record or verdict.guard) for verdict in verdicts if verdict.rule == "EO105"}
    guards = {id(guard) for op in case.ops for guard in op.guards}
    window = _redelivery_window(case)
    for tool in _collect_tools(case):
        _check_window(case, tool, window)
    for op in case.ops:
        if op.kind not in ("mark", "effect") or op.store not in ("redis", "cache"):
            continue
        if id(op) not in guards | without_nx and not _is_looked_up(case, op):
            continue  # not a dedup key
        if id(op) in without_nx:
            message = _NOT_ATOMIC if op.expires is not False else f"{_NOT_ATOMIC}; and it never expires"
            remedy = "SET key value NX EX seconds, and look at the answer"
            fix = _fix_nx(op) if id(op) in guards and is_dedup_record(op) else None
            case.report("EO105", op.at, message, help=remedy, mode="L", fix=fix, confidence=confidence_of_key(op))
        elif op.expires is False:
            remedy = f"give it an expiry longer than the redelivery window (ex={FIFTEEN_DAYS_SECONDS} is 15 days)"
            fix = _fix_ex(op) if is_dedup_record(op) else None
            case.report("EO105", op.at, _NO_EXPIRY, help=remedy, mode="L", fix=fix, confidence=confidence_of_key(op))
        _check_window(case, op, window)


def _collect_tools(case: ConsumerCheck) -> list[TracedOperation]:
    """The dedup tools among the operations and guards of the consumer, one for each place."""
    tools = [guard for op in case.ops for guard in (op, *op.guards) if guard.store == "tool"]
    return list({tool.at: tool for tool in tools}.values())


def _is_looked_up(case: ConsumerCheck, op: TracedOperation) -> bool:
    """Whether a condition looks up the key that ``op`` sets, which makes it a dedup key."""
    return any(
        read.kind == "read" and read.store == op.store and read.location == op.location and _is_condition(case, read)
        for read in case.ops
    )


def _is_condition(case: ConsumerCheck, read: TracedOperation) -> bool:
    return any(read in op.guards for op in case.ops)


def _fix_nx(op: TracedOperation) -> Fix | None:
    return add_argument(op, "nx=True", "add nx=True") if op.text.endswith(".set") else None


def _fix_ex(op: TracedOperation) -> Fix | None:
    description = f"add ex={FIFTEEN_DAYS_SECONDS} (15 days)"
    return add_argument(op, f"ex={FIFTEEN_DAYS_SECONDS}", description) if op.text.endswith(".set") else None


def _check_window(case: ConsumerCheck, record: TracedOperation, window: _RedeliveryWindow | None) -> None:
    """Report a dedup record that expires while its message can still be redelivered."""
    if record.seconds is None or window is None or record.seconds >= window.seconds:
        return
    case.report(
        "EO106",
        record.at,
        f"the dedup record is kept for {format_duration(record.seconds)}, "
        f"but the message can come back for {format_duration(window.seconds)}",
        labels=(Label(window.at, window.reason),) if window.at is not None else (),
        help="keep it longer than retries, visibility timeout, dead-letter queue and redrive together",
        mode="L",
    )


# -- how long a message can come back


@dataclass(slots=True)
class _RedeliveryWindow:
    """How long a message can come back, the reason, and the place of the setting."""

    seconds: float
    reason: str
    at: Place | None


def _redelivery_window(case: ConsumerCheck) -> _RedeliveryWindow | None:
    """The longest redelivery window that the settings of the consumer show; None if they show none."""
    consumer = case.consumer
    settings = consumer.settings
    at = None
    if consumer.registered_in is not None and consumer.registration is not None:
        at = consumer.registered_in.place(consumer.registration)
    windows = []
    if retries := _retry_window(case):
        windows.append(_RedeliveryWindow(*retries, at))
    retention = _number_of(_queue_attributes(settings.get("QueueUrl")).get("MessageRetentionPeriod"))
    if retention is not None:
        windows.append(_RedeliveryWindow(retention, f"the queue keeps it for {format_duration(retention)}", at))
    visibility_settings = [(settings.get(name), at) for name in ("VisibilityTimeout", "visibility_timeout")]
    if consumer.family == "celery":
        options, options_at = case.settings.get("broker_transport_options", (Value(), None))
        visibility_settings.append(((options.fields or {}).get("visibility_timeout"), options_at))
    for value, setting_at in visibility_settings:
        seconds = _number_of(value)
        if seconds is not None:
            windows.append(_RedeliveryWindow(seconds, f"visibility timeout of {format_duration(seconds)}", setting_at))
    return max(windows, default=None, key=lambda window: window.seconds)


def _retry_window(case: ConsumerCheck) -> tuple[float, str] | None:
    """Return for how many seconds a failed message is retried, and the reason."""
    settings = dict(case.consumer.settings)
    for name in ("retry_kwargs", "retry"):  # Celery's; a strategy of procrastinate, rq's Retry
        settings.update((settings[name].fields or {}) if name in settings else {})
    retries = _first_number(settings, _RETRY_COUNT_SETTINGS)
    delay = _first_number(settings, _RETRY_DELAY_SETTINGS)
    max_delay = _number_of(settings.get("max_backoff"))
    if delays := settings.get("interval", Value()).items:
        delay = sum(_number_of(item) or 0.0 for item in delays) / len(delays)
    if delay is None:
        countdowns = [countdown for op in case.ops if (countdown := _retry_countdown(op)) is not None]
        delay = max(countdowns, default=None)
        if retries is None and delay is not None:
            retries = _CELERY_DEFAULT_RETRIES
    if not retries or not delay:
        return None
    if case.consumer.family == "dramatiq":  # its delays are in milliseconds, and double with each retry
        backoffs = [
            min(delay * 2**attempt, max_delay or inf) / 1000 for attempt in range(min(int(retries), _MAX_BACKOFFS))
        ]
        first, last = format_duration(backoffs[0]), format_duration(backoffs[-1])
        return sum(backoffs), f"{int(retries)} retries, from {first} to {last} apart"
    return retries * delay, f"{int(retries)} retries, {format_duration(delay)} apart"


def _first_number(settings: dict[str, Value], names: tuple[str, ...]) -> float | None:
    """The first of the settings ``names`` that is a number."""
    return next((number for name in names if (number := _number_of(settings.get(name))) is not None), None)


def _queue_attributes(url: Value | None) -> dict[str, Value]:
    """The attributes of a queue, if the code that reads from it also creates it."""
    source = url
    while source is not None:
        if attributes := (source.fields or {}).get("Attributes"):
            return attributes.fields or {}
        source = source.base
    return {}


def _retry_countdown(op: TracedOperation) -> float | None:
    """The seconds of `self.retry(countdown=60)`."""
    arguments = (op.key.fields or {}) if op.kind == "retry" and op.key is not None else {}
    return _number_of(arguments.get("countdown"))


def _number_of(value: Value | None) -> float | None:
    """The number that a literal is, also as a string; None for other values."""
    literal = value.literal if value is not None else None
    if isinstance(literal, str) and literal.isdecimal():
        literal = int(literal)
    return float(literal) if isinstance(literal, int | float) and not isinstance(literal, bool) else None
