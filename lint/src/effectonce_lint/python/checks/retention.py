"""EO105 and EO106: how a key in Redis or a cache is set, and how long it is kept."""

from __future__ import annotations

from effectonce_lint.durations import format_duration
from effectonce_lint.findings import Fix, Label, Place
from effectonce_lint.python.values import Operation, Value

from .consumer_check import ConsumerCheck
from .dedup import EffectVerdict
from .edits import add_argument

FIFTEEN_DAYS_SECONDS = 1296000
_CELERY_DEFAULT_RETRIES = 3.0
_RETRY_COUNT_SETTINGS = ("max_retries", "max_attempts", "max", "retries")
_RETRY_DELAY_SETTINGS = ("default_retry_delay", "countdown", "retry_delay", "wait", "min_backoff", "interval")
_LOOSE = "this dedup key is set without NX, so two deliveries can both find it missing"
_FOREVER = "this dedup key never expires: Redis fills up, and then evicts what it should keep"


def check_retention(case: ConsumerCheck, verdicts: list[EffectVerdict]) -> None:
    loose = {id(each.record or each.guard) for each in verdicts if each.rule == "EO105"}
    guards = {id(guard) for op in case.ops for guard in op.guards}
    window = _redelivery_window(case)
    if window is not None:
        for tool in _collect_tools(case):
            if tool.seconds is not None and tool.seconds < window.seconds:
                _report_short(case, tool, tool.seconds, window)
    for op in case.ops:
        if op.kind not in ("mark", "effect") or op.store not in ("redis", "cache"):
            continue
        if id(op) not in guards | loose and not _is_looked_up(case, op):
            continue  # some other key
        if id(op) in loose:
            message = _LOOSE if op.expires is not False else f"{_LOOSE}; and it never expires"
            help_ = "SET key value NX EX seconds, and look at the answer"
            case.report("EO105", op.at, message, help=help_, mode="L", fix=_fix_nx(op) if id(op) in guards else None)
        elif op.expires is False:
            help_ = f"give it an expiry longer than the redelivery window (ex={FIFTEEN_DAYS_SECONDS} is 15 days)"
            case.report("EO105", op.at, _FOREVER, help=help_, mode="L", fix=_fix_ex(op))
        if op.seconds is not None and window is not None and op.seconds < window.seconds:
            _report_short(case, op, op.seconds, window)


def _collect_tools(case: ConsumerCheck) -> list[Operation]:
    """The tools that guard something here, each once by where it stands."""
    found = [guard for op in case.ops for guard in (op, *op.guards) if guard.store == "tool"]
    return list({each.at: each for each in found}.values())


def _is_looked_up(case: ConsumerCheck, op: Operation) -> bool:
    """Whether somebody looks the key up: then it is a record of having done something."""
    return any(
        each.kind == "read" and each.store == op.store and each.location == op.location and _is_condition(case, each)
        for each in case.ops
    )


def _is_condition(case: ConsumerCheck, read: Operation) -> bool:
    return any(read in op.guards for op in case.ops)


def _fix_nx(op: Operation) -> Fix | None:
    return add_argument(op, "nx=True", "add nx=True") if op.text.endswith(".set") else None


def _fix_ex(op: Operation) -> Fix | None:
    words = f"add ex={FIFTEEN_DAYS_SECONDS} (15 days)"
    return add_argument(op, f"ex={FIFTEEN_DAYS_SECONDS}", words) if op.text.endswith(".set") else None


def _report_short(case: ConsumerCheck, op: Operation, kept: float, window: _RedeliveryWindow) -> None:
    case.report(
        "EO106",
        op.at,
        f"the dedup record is kept for {format_duration(kept)}, "
        f"but the message can come back for {format_duration(window.seconds)}",
        labels=(Label(window.at, window.what),) if window.at is not None else (),
        help="keep it longer than retries, visibility timeout, dead-letter queue and redrive together",
        mode="L",
    )


# -- how long a message can come back


class _RedeliveryWindow:
    """Seconds, what says so, and where."""

    def __init__(self, seconds: float, what: str, at: Place | None) -> None:
        self.seconds, self.what, self.at = seconds, what, at


def _redelivery_window(case: ConsumerCheck) -> _RedeliveryWindow | None:
    """How long the message can come back, as far as that is written down where we look."""
    consumer = case.consumer
    at = None
    if consumer.registered_in is not None and consumer.registration is not None:
        at = consumer.registered_in.place(consumer.registration)
    settings = consumer.settings
    found = []
    if retried := _retry_window(case):
        found.append(_RedeliveryWindow(*retried, at))
    told = [(settings.get(name), at) for name in ("VisibilityTimeout", "visibility_timeout")]
    if consumer.family == "celery":
        options, place = case.settings.get("broker_transport_options", (Value(), None))
        told.append(((options.fields or {}).get("visibility_timeout"), place))
    kept = _number_of(_queue_attributes(settings.get("QueueUrl")).get("MessageRetentionPeriod"))
    if kept is not None:
        found.append(_RedeliveryWindow(kept, f"the queue keeps it for {format_duration(kept)}", at))
    for value, place in told:
        seconds = _number_of(value)
        if seconds is not None:
            found.append(_RedeliveryWindow(seconds, f"visibility timeout of {format_duration(seconds)}", place))
    return max(found, default=None, key=lambda each: each.seconds)


def _retry_window(case: ConsumerCheck) -> tuple[float, str] | None:
    """For how long a failed message is tried again, and what says so."""
    settings = dict(case.consumer.settings)
    for name in ("retry_kwargs", "retry"):  # Celery's; a strategy of procrastinate, rq's Retry
        settings.update((settings[name].fields or {}) if name in settings else {})
    retries = next(
        (found for name in _RETRY_COUNT_SETTINGS if (found := _number_of(settings.get(name))) is not None), None
    )
    delay = next(
        (found for name in _RETRY_DELAY_SETTINGS if (found := _number_of(settings.get(name))) is not None), None
    )
    longest = _number_of(settings.get("max_backoff"))
    if steps := settings.get("interval", Value()).items:
        delay = sum(_number_of(each) or 0.0 for each in steps) / len(steps)
    if delay is None:
        delay = max((each for op in case.ops if (each := _retry_countdown(op)) is not None), default=None)
        retries = retries if retries is not None or delay is None else _CELERY_DEFAULT_RETRIES
    if not retries or not delay:
        return None
    if case.consumer.family == "dramatiq":  # in milliseconds, and doubled each time
        delays = [min(delay * 2**each, longest or float("inf")) / 1000 for each in range(min(int(retries), 64))]
        return sum(
            delays
        ), f"{int(retries)} retries, from {format_duration(delays[0])} to {format_duration(delays[-1])} apart"
    return retries * delay, f"{int(retries)} retries, {format_duration(delay)} apart"


def _queue_attributes(url: Value | None) -> dict[str, Value]:
    """The attributes of a queue, where it is made by the code that reads from it."""
    made = url
    while made is not None and not (made.fields or {}).get("Attributes"):
        made = made.base
    return ((made.fields or {})["Attributes"].fields or {}) if made is not None else {}


def _retry_countdown(op: Operation) -> float | None:
    """Of `self.retry(countdown=60)`."""
    given = (op.key.fields or {}) if op.kind == "retry" and op.key is not None else {}
    return _number_of(given.get("countdown"))


def _number_of(value: Value | None) -> float | None:
    literal = value.literal if value is not None else None
    if isinstance(literal, str) and literal.isdecimal():
        literal = int(literal)
    return float(literal) if isinstance(literal, int | float) and not isinstance(literal, bool) else None
