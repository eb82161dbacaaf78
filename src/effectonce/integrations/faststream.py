"""FastStream: a middleware for all its brokers that runs each message once.

    broker = RabbitBroker(middlewares=[Idempotency(store, scope="billing", key="order-id")])

A duplicate returns the first one's result, so that replies and publishers work. One that arrives while the first runs,
or while the store does not answer, is nacked after a pause and delivered again. A message that no redelivery can fix
(in doubt, another body under one key) is rejected: it becomes a dead letter if the broker has them. If the handler
itself raises, FastStream settles the message as the subscriber's ``ack_policy`` says: ``AckPolicy.NACK_ON_ERROR`` lets
it be delivered again. A handler that raises ``AckMessage`` is done, one that raises ``NackMessage`` is not. Where
handlers ack by hand (``AckPolicy.MANUAL``), the middleware settles the messages that no handler sees.

The line guards every subscriber of the broker, those that come later, too. A handler under `@eo.once` keeps that guard:
the middleware then only settles its messages. `unguarded` leaves a handler alone.

A message that is acked before it is handled (``AckPolicy.ACK_FIRST``, Kafka's default) or that cannot be nacked (Redis
lists and channels) is never delivered again, guarded or not. A Redis stream delivers again to a subscriber with
``min_idle_time``.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Literal, NoReturn, TypeVar
from weakref import WeakSet

from faststream import AckPolicy, BaseMiddleware
from faststream.exceptions import AckMessage, NackMessage, RejectMessage

from effectonce.core.codec import Codec
from effectonce.core.delivery_outcome import Ack, Redeliver, decide_delivery, log_outcome
from effectonce.core.failure_log import caller_logs_failures
from effectonce.core.guarded_call.begin import begin, prepare_run
from effectonce.core.guarded_call.finish import abort, finish, settle_unfinished
from effectonce.core.guarded_call.run import Policy
from effectonce.errors import ConfigurationError, EffectOnceError, LeaseLost, MissingKey, Retryable
from effectonce.guard.introspection import default_scope, return_type
from effectonce.guard.once import find_guarded
from effectonce.guard.options import check_scope, policy_options
from effectonce.store import DEFAULT_RETENTION, Store, require_store
from effectonce.values.fingerprint import fingerprints
from effectonce.values.identity import Key, encode_key

MAX_NACK_PAUSE_S: Final = 1.0  # before a message that cannot be handled yet is nacked

H = TypeVar("H", bound=Callable[..., Any])

_unguarded: WeakSet[Callable[..., Any]] = WeakSet()


def unguarded(handler: H) -> H:
    """Leave the decorated handler alone, below its ``@broker.subscriber``: no `Idempotency` looks at its messages."""
    _unguarded.add(handler)
    return handler


class Idempotency:
    """A middleware for ``middlewares=`` of a broker or a router.

    ``scope`` names the consumer. Each handler has records of its own in it (``billing:shop.payments:charge``), so that
    two handlers of one message never hide it from each other. ``key`` is the name of the header with the producer's id,
    or a function of the message. Never use its ``message_id`` alone, unless the producer sets it: some brokers make one
    for each delivery. ``returns`` is the type of the handlers' results, where their annotations do not say. The other
    options are those of `once`, except ``mode``; the body is the fingerprint.
    """

    def __init__(
        self, store: Store, *, scope: str, key: str | Callable[[Any], Key], returns: Any = ..., **options: Any
    ) -> None:
        require_store(store, "Idempotency({}, …)")
        check_scope(scope)
        if not isinstance(key, str) and not callable(key):
            raise ConfigurationError("key= takes the name of a header, or a function of the message")
        self.store = store
        self.key = key
        self.scope = scope
        self._codec = None if returns is ... else Codec(returns, store.max_result)
        self._options = policy_options(mode="lease", **{"lease": "30s", "retention": DEFAULT_RETENTION, **options})
        self._policies: dict[Any, Policy] = {}

    def __call__(self, msg: Any, /, *, context: Any) -> BaseMiddleware[Any, Any]:
        return _MessageGuard(self, msg, context=context)

    def policy_of(self, handler: Any) -> Policy:
        """The settings of one handler: it has a scope of its own, and the type of its results."""
        if handler not in self._policies:
            scope = f"{self.scope}:{default_scope(handler, stacklevel=2)}"
            check_scope(scope)
            codec = self._codec or self._codec_of(handler)
            self._policies[handler] = Policy(scope=scope, codec=codec, **self._options)
        return self._policies[handler]

    def _codec_of(self, handler: Any) -> Codec:
        try:
            return Codec(return_type(handler, ...), self.store.max_result)
        except (NameError, ConfigurationError):  # results of this type cannot be stored; the handler may still run
            return Codec(Any, self.store.max_result)

    def key_of(self, message: Any) -> str:
        """Return the key of a message. Refuses a batch: all of its messages would have the key of the first."""
        if isinstance(message.body, list) or getattr(message, "batch_headers", None):
            raise ConfigurationError(
                f"a subscriber in scope {self.scope!r} takes its messages in batches, which have no key of their own; "
                "let it take them one by one (batch=False), or guard each in the handler with once"
            )
        value = self.key(message) if callable(self.key) else message.headers.get(self.key)
        if value is None:
            raise MissingKey(f"a message of scope {self.scope!r} has no key; its producer must give it one")
        return encode_key(value.decode() if isinstance(value, bytes) else value)


class _MessageGuard(BaseMiddleware[Any, Any]):
    """FastStream makes one for each message."""

    def __init__(self, guard: Idempotency, msg: Any, *, context: Any) -> None:
        super().__init__(msg, context=context)
        self._guard = guard

    async def consume_scope(self, call_next: Any, msg: Any) -> Any:
        caller_logs_failures.set(True)  # FastStream does, or `_settle`; its message has a context of its own
        guard, handler = self._guard, _find_handler(call_next)
        if inspect.unwrap(handler) in _unguarded:
            return await call_next(msg)
        if find_guarded(handler) is not None:
            try:
                return await call_next(msg)
            except EffectOnceError as error:
                await self._settle(msg, error)
        try:
            policy = guard.policy_of(inspect.unwrap(handler))
            run = prepare_run(guard.store.runtime, policy, guard.key_of(msg), fingerprints(bytes(msg.body)))
            client = run.runtime.async_client()
            await begin(run, client)
        except EffectOnceError as error:
            await self._settle(msg, error)
        if run.replayed:
            await self._settle_by_hand(msg, "ack")
            return run.value
        run.enter()
        try:
            try:
                value = await call_next(msg)
            except AckMessage:  # the handler says that it is done
                await finish(run, client, None)
                raise
            except NackMessage:  # the handler says that it is not done: ``on_error`` is for other exceptions
                await settle_unfinished(run, client, "free", "NackMessage")
                raise
            except BaseException as error:
                await abort(run, client, error)
                raise
            await finish(run, client, value)
            return value
        except (Retryable, LeaseLost) as error:  # it ran, but that could not be recorded: deliver it again
            await self._settle(msg, error)
        finally:
            run.end()

    async def _settle(self, msg: Any, error: EffectOnceError) -> NoReturn:
        """Settle a message as an error of the guard demands; by hand, if the subscriber acks by hand."""
        try:
            outcome = decide_delivery(error)
        except ConfigurationError:  # the program is wrong: its messages must wait until it is fixed
            outcome = Redeliver(MAX_NACK_PAUSE_S, error)
        if isinstance(outcome, Ack):  # it is done, but there is no stored result to reply or publish
            await self._settle_by_hand(msg, "ack")
            raise AckMessage from error
        log_outcome(self._guard.scope, outcome)
        if isinstance(outcome, Redeliver):
            await asyncio.sleep(min(outcome.after, MAX_NACK_PAUSE_S))
            await self._settle_by_hand(msg, "nack")
            raise NackMessage from error
        await self._settle_by_hand(msg, "reject")
        raise RejectMessage from error

    async def _settle_by_hand(self, msg: Any, settlement: Literal["ack", "nack", "reject"]) -> None:
        """Settle the message if its subscriber acks by hand: the handler, which is not called, cannot."""
        subscriber = None if self.context is None else self.context.get_local("handler_")
        if getattr(subscriber, "ack_policy", None) is AckPolicy.MANUAL:
            await getattr(msg, settlement)()


def _find_handler(call_next: Any) -> Any:
    """Find the handler that FastStream is about to call, below the middlewares inside of this one."""
    while isinstance(call_next, partial):
        call_next = call_next.args[0]
    wrapper = getattr(call_next, "__self__", None)
    return getattr(wrapper, "_original_call", call_next)
