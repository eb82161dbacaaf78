"""Dramatiq: a middleware that guards the actors which ask for it, or every actor.

    broker.add_middleware(Idempotency(store))                     # before the actors are declared

    @dramatiq.actor(once="payment_id")          # the key: a path from a parameter; or `once=True`: the message's id
    def charge(payment_id: str, amount: int): ...

    broker.add_middleware(Idempotency(store, every_actor=True))   # all of them, except those with `once=False`

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
from weakref import WeakSet

from dramatiq.encoder import JSONEncoder
from dramatiq.errors import Retry
from dramatiq.middleware import Middleware, MiddlewareError

from effectonce.core.argument_models import model_reader
from effectonce.core.codec import to_json
from effectonce.core.delivery_outcome import Ack, Redeliver, decide_delivery, log_outcome
from effectonce.core.failure_log import caller_logs_failures
from effectonce.errors import ConfigurationError, EffectOnceError, LeaseLost, ResultNotStored, Retryable, show
from effectonce.guard.once import find_guarded
from effectonce.guard.task_guard import check_defaults, guard_task
from effectonce.store import Store, require_store

#: The errors for which `decide_delivery` rejects a message: dramatiq must not retry them either.
REJECTED_ERRORS: Final = tuple(
    {*EffectOnceError.__subclasses__()} - {Retryable, LeaseLost, ResultNotStored, ConfigurationError}
)

_current_message: ContextVar[Any] = ContextVar("effectonce_dramatiq_message", default=None)

#: The option of a message that counts the retries that dramatiq does not.
REDELIVERIES_OPTION: Final = "effectonce_redeliveries"


class UncountedRetry(Retry):
    """Asks dramatiq to deliver the message again. It does not count as an attempt."""


class ActorNotGuarded(ConfigurationError, MiddlewareError):
    """The options of an actor's guard are wrong. Of what a middleware raises, dramatiq logs all but a
    ``MiddlewareError``, and the actor would run unguarded."""


class Idempotency(Middleware):
    """Guards every actor with ``once=``: a key, ``True`` for the message's id, or a dict of the options of `once`.

    With ``every_actor``, it guards those without ``once=``, too, as if they had ``once=True``; ``once=False`` leaves an
    actor alone. ``defaults`` are options of `once` for all of them; a ``key=`` among them takes the place of the
    message's id. The scope is the actor's queue and name. An actor whose function is under `once` keeps that guard.
    An actor that is called like a function has no message, and without another key it runs unguarded then.
    """

    def __init__(self, store: Store, *, every_actor: bool = False, **defaults: Any) -> None:
        require_store(store, "Idempotency({}, …)")
        check_defaults(store, defaults)
        self._store = store
        self._every_actor = every_actor
        self._defaults = defaults
        self._declared: WeakSet[Any] = WeakSet()

    @property
    def actor_options(self) -> set[str]:
        return {"once"}

    def before_declare_actor(self, broker: Any, actor: Any) -> None:
        self._declared.add(actor)
        requested = actor.options.get("once", self._every_actor)
        if not requested:
            return
        try:
            actor.fn = self._guard(actor, requested)
        except Exception as error:
            raise ActorNotGuarded(f"actor {show(actor.actor_name)} cannot be guarded: {error}") from error
        throws = actor.options.get("throws") or ()
        actor.options["throws"] = (*(throws if isinstance(throws, tuple) else (throws,)), *REJECTED_ERRORS)

    def after_declare_actor(self, broker: Any, actor: Any) -> None:
        """Raise `ConfigurationError` for an actor that was declared before this middleware was added, if every actor is
        to be guarded."""
        if self._every_actor and actor not in self._declared:
            raise ConfigurationError(
                f"actor {show(actor.actor_name)} was declared before Idempotency(store, every_actor=True) was "
                "added, so it would run unguarded; add the middleware right after the broker is made"
            )

    def _guard(self, actor: Any, requested: Any) -> Callable[..., Any]:
        function = actor.fn

        def read_message_id() -> str | None:
            # An actor that another one calls like a function must not take the other's message for its own.
            message = _current_message.get()
            return message.message_id if message is not None and message.actor_name == actor.actor_name else None

        call = guard_task(
            function,
            requested,
            store=self._store,
            scope=f"{actor.queue_name}:{actor.actor_name}",
            read_message_id=read_message_id,
            defaults=self._defaults,
        )
        guarded = find_guarded(call)
        assert guarded is not None
        scope = guarded.scope
        read = model_reader(function)

        @functools.wraps(function)
        def guard(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = read(args, kwargs)
            try:
                return call(*args, **kwargs)
            except EffectOnceError as error:
                message = _current_message.get()
                redeliveries = 0 if message is None else message.options.get(REDELIVERIES_OPTION, 0)
                outcome = decide_delivery(error, attempt=redeliveries + 1)
                if isinstance(outcome, Ack):
                    return None
                log_outcome(scope, outcome)
                if isinstance(outcome, Redeliver):
                    raise UncountedRetry(str(error), delay=round(outcome.after * 1000)) from error
                raise

        return guard

    def before_process_message(self, broker: Any, message: Any) -> None:
        _current_message.set(message)
        caller_logs_failures.set(True)  # dramatiq does, or the guard

    def after_process_message(self, broker: Any, message: Any, *, result: Any = None, exception: Any = None) -> None:
        _current_message.set(None)
        caller_logs_failures.set(False)
        if isinstance(exception, UncountedRetry):  # dramatiq's own middleware is next, and counts it
            message.options["retries"] = message.options.get("retries", 0) - 1
            message.options[REDELIVERIES_OPTION] = message.options.get(REDELIVERIES_OPTION, 0) + 1

    after_skip_message = after_process_message


class ModelEncoder(JSONEncoder):
    """Encodes messages and results as JSON, with pydantic models, dataclasses and structs in them."""

    def encode(self, data: dict[str, Any]) -> bytes:
        return to_json(data)
