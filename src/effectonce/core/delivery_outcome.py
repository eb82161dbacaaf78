"""What to answer the broker after an error: ack, redeliver after a while, or reject. One decision for all consumers.

`guard.dispatch`, the integrations of task frameworks and the worker ask the same function, so that an error means the
same everywhere:

    ResultNotStored                                    ack: it is done, only its result was not kept
    Retryable, LeaseLost                               redeliver: nothing ran, or its outcome is not known yet
    SchemaMissing, UnsafeStore, MissingDriver          redeliver: the store is not set up yet
    another ConfigurationError                         raised: the program is wrong, and no answer would be right
    any other error of ours                            reject: no redelivery can mend it
    an error of the handler's                          as its guard's ``permanent`` and its `Retry` say
"""

from __future__ import annotations

import logging
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
    show,
)

from .retry import Retry

log = logging.getLogger("effectonce")

_MIN_REDELIVERY_S: Final = 0.1
_DEFAULT_REDELIVERY_S: Final = 1.0


class Ack(Struct, frozen=True):
    """It is done, now or before: ack it. ``value`` is the handler's result; None where that was not kept."""

    value: Any = None
    replayed: bool = False


class Redeliver(Struct, frozen=True):
    """It is not done: deliver it again, not before ``after`` seconds."""

    after: float
    error: Exception


class Reject(Struct, frozen=True):
    """Delivering it again will not help: keep it where an operator looks, then take it from the queue."""

    error: Exception


DeliveryOutcome = Ack | Redeliver | Reject


def decide_delivery(
    error: Exception, *, retry: Retry | None = None, attempt: int = 1, final: bool = False
) -> DeliveryOutcome:
    """Decide about a delivery that ended with ``error``; the module has the table.

    ``retry`` and ``attempt`` give the delay, and end the attempts; without ``retry``, the delay is the one that the
    error names. ``final``: the guard has recorded that an error of the handler's own is not tried again.
    """
    if isinstance(error, ResultNotStored):
        return Ack(replayed=True)
    if isinstance(error, LeaseLost | SchemaMissing | UnsafeStore | MissingDriver):
        # After a lost lease the next delivery finds out how the other one ended.
        return Redeliver(_DEFAULT_REDELIVERY_S, error)
    if isinstance(error, ConfigurationError):
        raise error
    if isinstance(error, EffectOnceError):
        if not isinstance(error, Retryable):
            return Reject(error)
    elif final:
        return Reject(error)
    if retry is None:
        named = error.retry_after if isinstance(error, Retryable) else _DEFAULT_REDELIVERY_S
        return Redeliver(max(named, _MIN_REDELIVERY_S), error)
    after = retry.after(error, attempt)
    return Reject(error) if after is None else Redeliver(after, error)


def log_outcome(scope: str, outcome: Redeliver | Reject) -> None:
    """Log why a message is put off or rejected, for frameworks that do not. A duplicate that waits for its first
    delivery is expected, and not logged."""
    if not isinstance(outcome.error, InProgress):
        what = "rejected" if isinstance(outcome, Reject) else "put off"
        log.error("scope %s: a message was %s: %s", show(scope), what, outcome.error)
