"""One log line, with the traceback, for each attempt that failed: the only place that writes it.

    orders (handler shop.orders:book): attempt 1 failed and is retried in 2s: KeyError: 'sku' message=m-17 key=Order:1 …

The code that decides what follows a failed attempt calls `log_failed_attempt`, once. The traceback is in
``exc_info``, where Sentry, structlog and the formatters of `logging` find it; the facts are in ``extra``, as those of
`telemetry.logging.EventLogger` are.
"""

from __future__ import annotations

import hashlib
import logging
import traceback
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Final

from effectonce.errors import scrub_urls, show
from effectonce.values.durations import span_text

from .error_text import describe_error, error_class

log = logging.getLogger("effectonce")

MAX_VALUE_CHARACTERS: Final = 200
MAX_ERROR_CHARACTERS: Final = 500

MAX_TRACEBACK_CHARACTERS: Final = 2000
MAX_TRACEBACK_LINE_CHARACTERS: Final = 300


caller_logs_failures: ContextVar[bool] = ContextVar("effectonce_caller_logs_failures", default=False)
"""Whether an error that leaves the handler which runs now is logged by what called it: by a dispatcher, or by a task
framework. An intent inside of the handler leaves its own error to them, which would log it a second time."""


def log_failed_attempt(
    what: Mapping[str, str],
    error: BaseException,
    then: str,
    *,
    last: bool,
    refused: bool = False,
    message: str = "",
    scope: str = "",
    key: str = "",
    attempt: int = 0,
    private: bool = False,
) -> None:
    """Log that an attempt failed with ``error``: as a warning, or as an error if it was the ``last`` one. What was
    ``refused``, as a card that is declined, is an answer of the provider and no defect: a warning, without traceback.

    ``what`` names what ran, from the outside in: ``{"queue": "orders", "handler": "shop:book"}``. ``then`` says what
    happens next, as the end of the sentence "it …": "is retried in 2s". With ``private``, the line has a hash of the
    key, and of the error only its class and its traceback.
    """
    level = logging.ERROR if last and not refused else logging.WARNING
    if not log.isEnabledFor(level):
        return
    facts: dict[str, Any] = {
        **what,
        "message": message,
        "scope": scope,
        "key": hash_key(scope, key) if private else key,
        "attempt": attempt,
    }
    facts = {name: show(fact, MAX_VALUE_CHARACTERS) if isinstance(fact, str) else fact for name, fact in facts.items()}
    facts = {name: fact for name, fact in facts.items() if fact}
    where = ", ".join(f"{name} {facts[name]}" for name in what if name in facts)
    rest = " ".join(f"{name}={fact}" for name, fact in facts.items() if name not in what)
    text = type(error).__name__ if private else describe_error(error, MAX_ERROR_CHARACTERS)
    record = log.makeRecord(
        log.name,
        level,
        *log.findCaller(stacklevel=2)[:2],
        "%s failed and %s: %s%s",
        (where, then, text, f" ({rest})" if rest else ""),
        None if refused else (type(error), error, error.__traceback__),
        extra={"effectonce": {**facts, "error": error_class(error), "next": then}},
    )
    if not refused:
        record.exc_text = _scrubbed_traceback(error, key if private else "", str(facts.get("key")))
    log.handle(record)


def retried_in(seconds: float) -> str:
    """What happens next, for `log_failed_attempt`: another attempt after ``seconds``."""
    return f"is retried in {span_text(round(seconds * 1e6))}" if seconds >= 0.001 else "is retried at once"


def hash_key(scope: str, key: str) -> str:
    """A short hash that stands for a key that may not be shown; "" for none."""
    if not key:
        return ""
    return f"#{hashlib.sha256(f'{len(scope)}:{scope}{key}'.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"


def _scrubbed_traceback(error: BaseException, hidden_key: str, shown_key: str) -> str | None:
    """The traceback of ``error`` for the formatters of `logging`, where it quotes ``hidden_key`` or a URL that has
    secrets. None: they write it themselves."""
    text = "".join(traceback.format_exception(error)).rstrip("\n")
    scrubbed = scrub_urls(text)
    if hidden_key:
        scrubbed = scrubbed.replace(repr(show(hidden_key)), shown_key).replace(repr(hidden_key), shown_key)
    return scrubbed if scrubbed != text else None


def traceback_tail(error: BaseException, *, frames_only: bool = False) -> str:
    """The end of the traceback of ``error``, without the secrets of URLs: the last frames, and the error itself.

    With ``frames_only``, it has only the file, line and function of each frame: neither code nor the error's text.
    """
    try:
        if frames_only:
            frames = traceback.extract_tb(error.__traceback__)
            lines = [f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in frames]
        else:
            text = scrub_urls("".join(traceback.format_exception(error)))
            lines = [line for line in text.splitlines() if line.strip(" ^~")]
    except Exception:  # its own __str__ raises
        return ""
    tail: list[str] = []
    room = MAX_TRACEBACK_CHARACTERS - len("…\n")
    for line in reversed(lines):
        shown = show(line, MAX_TRACEBACK_LINE_CHARACTERS)
        room -= len(shown) + 1
        if room < 0:
            tail.append("…")
            break
        tail.append(shown)
    return "\n".join(reversed(tail))
