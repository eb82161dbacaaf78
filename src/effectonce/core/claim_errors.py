"""The error that a caller gets when a claim was refused."""

from __future__ import annotations

import shlex
from typing import Final

from effectonce.errors import (
    AttemptsExhausted,
    CorruptRecord,
    InDoubt,
    InProgress,
    PayloadMismatch,
    PermanentFailure,
    ResultNotStored,
    show,
)
from effectonce.record import Answer
from effectonce.values.durations import span_text
from effectonce.values.scopes import kind_of_scope

from .codec import StoredError, decode_error
from .rebuilt_errors import Errors, rebuild
from .retry import mark_final

FIRST_DUPLICATE_DELAY_S: Final = 0.2
"""When a duplicate that meets the first delivery is to come back. Most handlers have ended by then, long before their
lease does; a later attempt waits longer (`InProgress.delay_after`)."""


def claim_error(answer: Answer, scope: str, key: str, stored: bytes | None, permanent: Errors) -> BaseException:
    """Make the error for ``answer``. If the record has failed, ``stored`` is its error: an exception of a class in
    ``permanent`` is rebuilt from it, so that a duplicate raises what the first call raised. If no attempt was left, it
    is the last error that an attempt reported."""
    kind = answer.kind
    about = f"scope {show(scope)!r}, key {show(key)!r}"
    if kind == "done":
        return ResultNotStored(
            f"{about} is done, but its result was not stored (too large, or not of the annotated type); the effect "
            "happened: ack this delivery"
        )
    if kind == "in_progress":
        when = span_text(max(1000, round(answer.retry_after * 1e6)))
        return InProgress(
            f"{about} is being run by another delivery; its lease ends in {when} unless it is renewed: do not ack this "
            "one, deliver it again later (or let it wait for the result: wait=)",
            min(FIRST_DUPLICATE_DELAY_S, answer.retry_after),
            lease_left=answer.retry_after,
        )
    if kind == "in_doubt":
        return InDoubt(
            f"{about} is in doubt: an attempt ended without saying whether its effect happened; keep this delivery, "
            f"find out whether it did, then decide: effectonce {_resolve_command(scope, key)}"
        )
    if kind == "mismatch":
        return PayloadMismatch(
            f"{about} was used before with another payload; a retry must send the same payload, and a new operation "
            "must have a new key"
        )
    if kind == "exhausted":
        return AttemptsExhausted(
            f"{about} used all of its attempts; {describe_last_error(stored)}fix the cause, then let it run again "
            "(store.forget resets them)",
            error="attempts-exhausted",
        )
    return _rebuild_failure(decode_error(stored), permanent, about)


def _resolve_command(scope: str, key: str) -> str:
    """The command that decides a record of ``scope``. Intents and sagas continue from a decision, so only their program
    makes it."""
    kind = kind_of_scope(scope)
    if kind == "guard":
        return f"records resolve {shlex.quote(show(scope))} {shlex.quote(show(key, 500))}"
    program = "intents resolve MODULE:INTENTS" if kind == "intent" else "sagas resolve MODULE:SAGA"
    return f"{program} {shlex.quote(show(key, 500))}"


def describe_last_error(stored: bytes | None) -> str:
    """The error that an attempt reported last, as a clause with more of the sentence behind it; "" if none did.
    ``stored``: that error, as a record keeps it."""
    if stored is None:
        return ""
    try:
        error = decode_error(stored)
    except CorruptRecord:
        return "the last error cannot be read by this release; "
    return f"the last error was {': '.join(filter(None, (error.type.rpartition(':')[2], show(error.message, 300))))}; "


def _rebuild_failure(error: StoredError, permanent: Errors, about: str) -> BaseException:
    if error.code == "abandoned":
        return PermanentFailure(f"{about} was in doubt, and an operator abandoned it", error=error.code)
    rebuilt = rebuild(error.type, error.message, permanent, error.args, error.named)
    if rebuilt is not None:
        mark_final(rebuilt)
        return rebuilt
    code = (error.named or {}).get("code")
    text = f"{error.type} {error.message}".rstrip() + (f" (code {show(code, 100)})" if isinstance(code, str) else "")
    return PermanentFailure(f"{about} failed for good: {text}", error=error.type)
