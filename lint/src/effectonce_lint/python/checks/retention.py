"""EO105 and EO106: how a key in Redis or a cache is set, and how long it is kept."""

from __future__ import annotations

from effectonce_lint.durations import span
from effectonce_lint.findings import Fix, Label, Place
from effectonce_lint.python.values import Op, Val

from .consumer_check import Case
from .dedup import Verdict
from .edits import with_argument

FIFTEEN_DAYS = 1296000
_CELERY_RETRIES = 3.0
_TIMES = ("max_retries", "max_attempts", "max", "retries")
_APART = ("default_retry_delay", "countdown", "retry_delay", "wait", "min_backoff", "interval")
_LOOSE = "this dedup key is set without NX, so two deliveries can both find it missing"
_FOREVER = "this dedup key never expires: Redis fills up, and then evicts what it should keep"


def judge(case: Case, verdicts: list[Verdict]) -> None:
    loose = {id(each.record or each.guard) for each in verdicts if each.rule == "EO105"}
    guards = {id(guard) for op in case.ops for guard in op.guards}
    window = _window(case)
    if window is not None:
        for tool in _tools(case):
            if tool.seconds is not None and tool.seconds < window.seconds:
                _report_short(case, tool, tool.seconds, window)
    for op in case.ops:
        if op.kind not in ("mark", "effect") or op.store not in ("redis", "cache"):
            continue
        if id(op) not in guards | loose and not _checked(case, op):
            continue  # some other key
        if id(op) in loose:
            message = _LOOSE if op.expires is not False else f"{_LOOSE}; and it never expires"
            help_ = "SET key value NX EX seconds, and look at the answer"
            case.found("EO105", op.at, message, help=help_, mode="L", fix=_nx(op) if id(op) in guards else None)
        elif op.expires is False:
            help_ = f"give it an expiry longer than the redelivery window (ex={FIFTEEN_DAYS} is 15 days)"
            case.found("EO105", op.at, _FOREVER, help=help_, mode="L", fix=_ex(op))
        if op.seconds is not None and window is not None and op.seconds < window.seconds:
            _report_short(case, op, op.seconds, window)


def _tools(case: Case) -> list[Op]:
    """The tools that guard something here, each once by where it stands."""
    found = [guard for op in case.ops for guard in (op, *op.guards) if guard.store == "tool"]
    return list({each.at: each for each in found}.values())


def _checked(case: Case, op: Op) -> bool:
    """Whether somebody looks the key up: then it is a record of having done something."""
    return any(
        each.kind == "read" and each.store == op.store and each.location == op.location and _decides(case, each)
        for each in case.ops
    )


def _decides(case: Case, read: Op) -> bool:
    return any(read in op.guards for op in case.ops)


def _nx(op: Op) -> Fix | None:
    return with_argument(op, "nx=True", "add nx=True") if op.text.endswith(".set") else None


def _ex(op: Op) -> Fix | None:
    words = f"add ex={FIFTEEN_DAYS} (15 days)"
    return with_argument(op, f"ex={FIFTEEN_DAYS}", words) if op.text.endswith(".set") else None


def _report_short(case: Case, op: Op, kept: float, window: _Window) -> None:
    case.found(
        "EO106",
        op.at,
        f"the dedup record is kept for {span(kept)}, but the message can come back for {span(window.seconds)}",
        labels=(Label(window.at, window.what),) if window.at is not None else (),
        help="keep it longer than retries, visibility timeout, dead-letter queue and redrive together",
        mode="L",
    )


# -- how long a message can come back


class _Window:
    """Seconds, what says so, and where."""

    def __init__(self, seconds: float, what: str, at: Place | None) -> None:
        self.seconds, self.what, self.at = seconds, what, at


def _window(case: Case) -> _Window | None:
    """How long the message can come back, as far as that is written down where we look."""
    consumer = case.consumer
    at = None
    if consumer.registered_in is not None and consumer.registration is not None:
        at = consumer.registered_in.place(consumer.registration)
    settings = consumer.settings
    found = []
    if retried := _retried(case):
        found.append(_Window(*retried, at))
    told = [(settings.get(name), at) for name in ("VisibilityTimeout", "visibility_timeout")]
    if consumer.family == "celery":
        options, place = case.settings.get("broker_transport_options", (Val(), None))
        told.append(((options.fields or {}).get("visibility_timeout"), place))
    kept = _number(_made_queue(settings.get("QueueUrl")).get("MessageRetentionPeriod"))
    if kept is not None:
        found.append(_Window(kept, f"the queue keeps it for {span(kept)}", at))
    for value, place in told:
        seconds = _number(value)
        if seconds is not None:
            found.append(_Window(seconds, f"visibility timeout of {span(seconds)}", place))
    return max(found, default=None, key=lambda each: each.seconds)


def _retried(case: Case) -> tuple[float, str] | None:
    """For how long a failed message is tried again, and what says so."""
    settings = dict(case.consumer.settings)
    for name in ("retry_kwargs", "retry"):  # Celery's; a strategy of procrastinate, rq's Retry
        settings.update((settings[name].fields or {}) if name in settings else {})
    retries = next((found for name in _TIMES if (found := _number(settings.get(name))) is not None), None)
    delay = next((found for name in _APART if (found := _number(settings.get(name))) is not None), None)
    longest = _number(settings.get("max_backoff"))
    if steps := settings.get("interval", Val()).items:
        delay = sum(_number(each) or 0.0 for each in steps) / len(steps)
    if delay is None:
        delay = max((each for op in case.ops if (each := _countdown(op)) is not None), default=None)
        retries = retries if retries is not None or delay is None else _CELERY_RETRIES
    if not retries or not delay:
        return None
    if case.consumer.family == "dramatiq":  # in milliseconds, and doubled each time
        delays = [min(delay * 2**each, longest or float("inf")) / 1000 for each in range(min(int(retries), 64))]
        return sum(delays), f"{int(retries)} retries, from {span(delays[0])} to {span(delays[-1])} apart"
    return retries * delay, f"{int(retries)} retries, {span(delay)} apart"


def _made_queue(url: Val | None) -> dict[str, Val]:
    """The attributes of a queue, where it is made by the code that reads from it."""
    made = url
    while made is not None and not (made.fields or {}).get("Attributes"):
        made = made.base
    return ((made.fields or {})["Attributes"].fields or {}) if made is not None else {}


def _countdown(op: Op) -> float | None:
    """Of `self.retry(countdown=60)`."""
    given = (op.key.fields or {}) if op.kind == "retry" and op.key is not None else {}
    return _number(given.get("countdown"))


def _number(value: Val | None) -> float | None:
    literal = value.literal if value is not None else None
    if isinstance(literal, str) and literal.isdecimal():
        literal = int(literal)
    return float(literal) if isinstance(literal, int | float) and not isinstance(literal, bool) else None
