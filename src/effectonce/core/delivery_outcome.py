"""What to answer the broker after an error: ack, redeliver after a while, or reject.

`guard.dispatch` and the integrations of task frameworks decide here, so that an error means the same in all of them. A
worker knows more of its messages, and decides in `HandlerRoute.decide_failure` and its executors:

    ResultNotStored                                    ack: it is done, only its result was not kept
    InProgress                                         redeliver: soon, then later and later, however often
    another Retryable, LeaseLost                       redeliver: nothing ran, or its outcome is not known yet
    SchemaMissing, UnsafeStore, MissingDriver          redeliver: the store is not set up yet
    another ConfigurationError                         raised: the program is wrong, and no answer would be right
    any other `EffectOnceError`                        reject: delivering it again cannot help
    an error of the handler's                          as the guard's ``permanent`` and the `Retry` say
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from effectonce.errors import (
    ConfigurationError,
    EffectOnceError,
    InProgress,
    LeaseLost,
    MissingDriver,
    ResultNotStored,
    Retryable,
    SchemaMissing,
    UnsafeStore,
)

from .failure_log import log_failed_attempt, retried_in
from .retry import Retry

_MIN_REDELIVERY_S: Final = 0.1
_DEFAULT_REDELIVERY_S: Final = 1.0
_MAX_REDELIVERY_S: Final = 60.0
"""Without a `Retry`, the delay is doubled with each attempt up to this: an outage of hours must not cost a traceback in
the log, or a call of the provider, for every message and second."""
_MAX_DOUBLINGS: Final = 10


class Ack(Struct, frozen=True):
    """The operation is done, now or before: ack the delivery. ``value`` is the handler's result, or None if that was
    not stored."""

    value: Any = None
    replayed: bool = False


class Redeliver(Struct, frozen=True):
    """The operation is not done: deliver it again, not before ``after`` seconds."""

    after: float
    error: Exception


class Reject(Struct, frozen=True):
    """Delivering it again will not help: keep it as a dead letter, then remove it from the queue."""

    error: Exception


DeliveryOutcome = Ack | Redeliver | Reject


def decide_delivery(
    error: Exception, *, retry: Retry | None = None, attempt: int | None = None, final: bool = False
) -> DeliveryOutcome:
    """Decide about a delivery that ended with ``error``, by the table of the module.

    ``retry`` decides from the ``attempt`` how long to wait, and when to give up. Without it the delay grows with the
    attempt, from the error's own ``retry_after`` or a second, and there is no end. A duplicate whose first delivery is
    running is not given up: it has not failed. ``attempt`` counts the deliveries from 1; None: they are not counted.
    ``final``: the guard recorded the handler's error as permanent.
    """
    if isinstance(error, ResultNotStored):
        return Ack(replayed=True)
    if isinstance(error, LeaseLost | SchemaMissing | UnsafeStore | MissingDriver):
        # After a lost lease, the next delivery learns from the record how the other one ended.
        return Redeliver(_DEFAULT_REDELIVERY_S, error)
    if isinstance(error, ConfigurationError):
        raise error
    if isinstance(error, EffectOnceError):
        if not isinstance(error, Retryable):
            return Reject(error)
    elif final:
        return Reject(error)
    if isinstance(error, InProgress) and (retry is None or not retry.refuses(error)):
        return Redeliver(max(error.delay_after(attempt), _MIN_REDELIVERY_S), error)
    if retry is None:
        delay = error.retry_after if isinstance(error, Retryable) else _DEFAULT_REDELIVERY_S
        if attempt is not None:
            delay = max(delay, min(_DEFAULT_REDELIVERY_S * 2.0 ** min(attempt - 1, _MAX_DOUBLINGS), _MAX_REDELIVERY_S))
        return Redeliver(max(delay, _MIN_REDELIVERY_S), error)
    after = retry.delay_after(error, attempt or 1)
    return Reject(error) if after is None else Redeliver(after, error)


def log_outcome(scope: str, outcome: DeliveryOutcome, message: str = "", attempt: int = 0) -> None:
    """Log why a message is delivered again or rejected, for frameworks that do not. `InProgress` is not logged: a
    duplicate that waits for the first delivery is expected."""
    if isinstance(outcome, Ack) or isinstance(outcome.error, InProgress):
        return
    rejected = isinstance(outcome, Reject)
    then = "the message is rejected" if isinstance(outcome, Reject) else retried_in(outcome.after)
    log_failed_attempt({"handler": scope}, outcome.error, then, last=rejected, message=message, attempt=attempt)
