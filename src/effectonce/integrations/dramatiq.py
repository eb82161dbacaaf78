"""Dramatiq: a middleware that guards the actors which ask for it.

    broker.add_middleware(Idempotency(store))

    @dramatiq.actor(once="payment_id")          # the key: a path from a parameter; or `once=True`: the message's id
    def charge(payment_id: str, amount: int): ...

A duplicate returns the first one's result, so that pipelines, groups and callbacks work. One that arrives while the
first runs, or while the store does not answer, is retried after the time that the error says, without using up
``max_retries``. A message that no retry can fix (in doubt, another payload under one key, failed for good) becomes a
dead letter at once.

A guarded actor gets pydantic models, dataclasses and structs where its parameters are annotated so; to send and to
return them, let dramatiq encode them: ``dramatiq.set_encoder(ModelEncoder())``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final

from dramatiq.encoder import JSONEncoder
from dramatiq.errors import Retry
from dramatiq.middleware import Middleware

from effectonce.core.argument_models import model_reader
from effectonce.core.codec import to_json
from effectonce.core.delivery_outcome import Ack, Redeliver, decide_delivery, log_outcome
from effectonce.errors import ConfigurationError, EffectOnceError, LeaseLost, ResultNotStored, Retryable
from effectonce.guard.once import once
from effectonce.keys import Extract, Strategy
from effectonce.store import Store, require_store

#: The errors for which `decide_delivery` rejects a message: dramatiq must not retry them either.
REJECTED_ERRORS: Final = tuple(
    {*EffectOnceError.__subclasses__()} - {Retryable, LeaseLost, ResultNotStored, ConfigurationError}
)

_message_id: ContextVar[str | None] = ContextVar("effectonce_dramatiq_message", default=None)
_redeliveries: ContextVar[int] = ContextVar("effectonce_dramatiq_redeliveries", default=0)

#: The option of a message that counts the retries that dramatiq does not.
REDELIVERIES_OPTION: Final = "effectonce_redeliveries"


class _MessageId(Strategy):
    """The key of an actor with ``once=True``: the id of the message that it handles."""

    def bind(self, handler: Any, name: str) -> Extract:
        return lambda args, kwargs: _message_id.get()


class UncountedRetry(Retry):
    """Asks dramatiq to deliver the message again. It does not count as an attempt."""


class Idempotency(Middleware):
    """Guards every actor with ``once=``: a key, ``True`` for the message's id, or a dict of the options of `once`.

    ``defaults`` are options of `once` for all of them. The default scope is the actor's queue and
    name.
    """

    def __init__(self, store: Store, **defaults: Any) -> None:
        require_store(store, "Idempotency({}, …)")
        self._store = store
        self._defaults = defaults

    @property
    def actor_options(self) -> set[str]:
        return {"once"}

    def before_declare_actor(self, broker: Any, actor: Any) -> None:
        requested = actor.options.get("once")
        if not requested:
            return
        scope = f"{actor.queue_name}:{actor.actor_name}"
        options: dict[str, Any] = {"scope": scope, "key": _MessageId(), **self._defaults}
        if isinstance(requested, dict):
            options.update(requested)
        elif requested is not True:
            options["key"] = requested
        actor.fn = self._guard(actor.fn, options)
        throws = actor.options.get("throws") or ()
        actor.options["throws"] = (*(throws if isinstance(throws, tuple) else (throws,)), *REJECTED_ERRORS)

    def _guard(self, function: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
        call = once(self._store, **options)(function)
        read = model_reader(function)

        @functools.wraps(function)
        def guard(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = read(args, kwargs)
            try:
                return call(*args, **kwargs)
            except EffectOnceError as error:
                outcome = decide_delivery(error, attempt=_redeliveries.get() + 1)
                if isinstance(outcome, Ack):
                    return None
                log_outcome(call.scope, outcome)
                if isinstance(outcome, Redeliver):
                    raise UncountedRetry(str(error), delay=round(outcome.after * 1000)) from error
                raise

        return guard

    def before_process_message(self, broker: Any, message: Any) -> None:
        _message_id.set(message.message_id)
        _redeliveries.set(message.options.get(REDELIVERIES_OPTION, 0))

    def after_process_message(self, broker: Any, message: Any, *, result: Any = None, exception: Any = None) -> None:
        _message_id.set(None)
        if isinstance(exception, UncountedRetry):  # dramatiq's own middleware is next, and counts it
            message.options["retries"] = message.options.get("retries", 0) - 1
            message.options[REDELIVERIES_OPTION] = message.options.get(REDELIVERIES_OPTION, 0) + 1

    after_skip_message = after_process_message


class ModelEncoder(JSONEncoder):
    """Encodes messages and results as JSON, with pydantic models, dataclasses and structs in them."""

    def encode(self, data: dict[str, Any]) -> bytes:
        return to_json(data)
