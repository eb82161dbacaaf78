"""FastStream: a middleware for all its brokers that runs each message once.

    broker = RabbitBroker(middlewares=[Idempotency(store, scope="billing", key="order-id")])

A duplicate gives the first one's result, so that replies and publishers go on. One that arrives while the first runs,
or while the store does not answer, is nacked after a while and comes again; what no redelivery can mend (in doubt,
another body under one key) is rejected, to the dead letters where the broker has them. What a handler raises is
FastStream's to settle, by the subscriber's ``ack_policy``: with ``AckPolicy.NACK_ON_ERROR`` it comes again. One that
raises ``AckMessage`` is done, one that raises ``NackMessage`` is not. Where a handler acks by hand
(``AckPolicy.MANUAL``), the middleware does it for what it keeps from the handler.

What is acked before it is handled (``AckPolicy.ACK_FIRST``, Kafka's default) or cannot be given back (Redis lists and
channels) never comes again, guarded or not. A Redis stream gives back what a subscriber with ``min_idle_time`` claims.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Literal, NoReturn

from faststream import AckPolicy, BaseMiddleware
from faststream.exceptions import AckMessage, NackMessage, RejectMessage

from effectonce.core.codec import Codec
from effectonce.core.delivery_outcome import Ack, Redeliver, decide_delivery
from effectonce.core.guarded_call.begin import begin, prepare
from effectonce.core.guarded_call.finish import abort, finish, leave
from effectonce.core.guarded_call.run import Policy, running
from effectonce.errors import (
    ConfigurationError,
    EffectOnceError,
    LeaseLost,
    MissingKey,
    Retryable,
)
from effectonce.guard.introspection import default_scope, return_type
from effectonce.guard.options import check_scope, policy_options
from effectonce.store import DEFAULT_RETENTION, Store
from effectonce.values.fingerprint import fingerprints
from effectonce.values.identity import Key, encode_key

from .redelivery import log_redelivery

MAX_NACK_PAUSE_S: Final = 1.0  # before a message that cannot be handled yet is nacked


class Idempotency:
    """What ``middlewares=`` takes; of a broker or a router.

    ``scope`` names the consumer. Each handler has records of its own in it (``billing:shop.payments:charge``), so that
    two handlers of one message never hide it from each other. ``key`` is the name of the header that the producer's id
    is in, or a function of the message. Never its ``message_id`` alone, unless the producer sets it: some brokers make
    one for each delivery.
    ``returns`` is the type of what the handlers return, where their annotations do not tell. Other options are those of
    `once`; the body is the fingerprint.
    """

    def __init__(
        self,
        store: Store,
        *,
        scope: str,
        key: str | Callable[[Any], Key],
        lease: Any = "30s",
        retention: Any = DEFAULT_RETENTION,
        max_attempts: int | None = None,
        max_run: Any = "1h",
        on_error: Any = "release",
        on_lapse: Any = "rerun",
        on_store_error: Any = "raise",
        permanent: tuple[type[BaseException], ...] = (),
        returns: Any = ...,
    ) -> None:
        check_scope(scope)
        if not isinstance(key, str) and not callable(key):
            raise ConfigurationError("key= takes the name of a header, or a function of the message")
        options = policy_options(
            mode="lease",
            lease=lease,
            retention=retention,
            max_attempts=max_attempts,
            max_run=max_run,
            on_error=on_error,
            on_lapse=on_lapse,
            on_store_error=on_store_error,
            permanent=permanent,
        )
        self.store = store
        self.key = key
        self.scope = scope
        self._codec = None if returns is ... else Codec(returns, store.max_result)
        self._options = options
        self._policies: dict[Any, Policy] = {}

    def __call__(self, msg: Any, /, *, context: Any) -> BaseMiddleware[Any, Any]:
        return _Once(self, msg, context=context)

    def policy_of(self, handler: Any) -> Policy:
        """The settings of one handler: its own scope, and the type of what it returns."""
        policy = self._policies.get(handler)
        if policy is None:
            scope = f"{self.scope}:{default_scope(handler)}"
            check_scope(scope)
            policy = self._policies[handler] = Policy(
                scope=scope, codec=self._codec or self._codec_of(handler), **self._options
            )
        return policy

    def _codec_of(self, handler: Any) -> Codec:
        try:
            return Codec(return_type(handler, ...), self.store.max_result)
        except (NameError, ConfigurationError):  # a type that cannot be kept: no reason to refuse its messages
            return Codec(Any, self.store.max_result)

    def key_of(self, message: Any) -> str:
        """Return the key of a message. Refuses batches: all of one would go by the key of its first message."""
        if isinstance(message.body, list) or getattr(message, "batch_headers", None):
            raise ConfigurationError(
                f"a subscriber in scope {self.scope!r} takes its messages in batches, which have no key of their own; "
                "let it take them one by one (batch=False), or guard each inside of the handler with once"
            )
        value = self.key(message) if callable(self.key) else message.headers.get(self.key)
        if value is None:
            raise MissingKey(f"a message of scope {self.scope!r} has no key; its producer must give it one")
        return encode_key(value.decode() if isinstance(value, bytes) else value)


class _Once(BaseMiddleware[Any, Any]):
    def __init__(self, guard: Idempotency, msg: Any, *, context: Any) -> None:
        super().__init__(msg, context=context)
        self._guard = guard

    async def consume_scope(self, call_next: Any, msg: Any) -> Any:
        guard = self._guard
        try:
            policy = guard.policy_of(_find_handler(call_next))
            run = prepare(guard.store.runtime, policy, guard.key_of(msg), fingerprints(bytes(msg.body)))
            client = run.runtime.async_client()
            await begin(run, client)
        except EffectOnceError as error:
            await self._settle_unclaimed(msg, error)
        if run.replayed:
            await self._settle_by_hand(msg, "ack")
            return run.value
        running.set(run)
        try:
            try:
                value = await call_next(msg)
            except AckMessage:  # how a handler says that it is done
                await finish(run, client, None)
                raise
            except NackMessage:  # and that it is not, whatever `on_error` makes of other exceptions
                await leave(run, client, "free", "NackMessage")
                raise
            except BaseException as error:
                await abort(run, client, error)
                raise
            await finish(run, client, value)
            return value
        except (Retryable, LeaseLost) as error:  # it ran, and that could not be recorded: deliver it again
            log_redelivery(guard.scope, "nacked", error)
            await self._settle_by_hand(msg, "nack")
            raise NackMessage from error
        finally:
            run.end()

    async def _settle_unclaimed(self, msg: Any, error: EffectOnceError) -> NoReturn:
        """Settle a message that the guard did not let through to its handler."""
        scope = self._guard.scope
        try:
            outcome = decide_delivery(error)
        except ConfigurationError:  # the program is wrong: its messages must not be lost while it is fixed
            outcome = Redeliver(MAX_NACK_PAUSE_S, error)
        if isinstance(outcome, Ack):  # the result that was to be replied or published was not kept
            await self._settle_by_hand(msg, "ack")
            raise AckMessage from error
        if isinstance(outcome, Redeliver):
            log_redelivery(scope, "nacked", error)
            await asyncio.sleep(min(outcome.after, MAX_NACK_PAUSE_S))
            await self._settle_by_hand(msg, "nack")
            raise NackMessage from error
        log_redelivery(scope, "rejected", error)
        await self._settle_by_hand(msg, "reject")
        raise RejectMessage from error

    async def _settle_by_hand(self, msg: Any, settlement: Literal["ack", "nack", "reject"]) -> None:
        """Settle with the broker for a subscriber that acks by hand: its handler is not called and cannot."""
        subscriber = None if self.context is None else self.context.get_local("handler_")
        if getattr(subscriber, "ack_policy", None) is AckPolicy.MANUAL:
            await getattr(msg, settlement)()


def _find_handler(call_next: Any) -> Any:
    """Find the function that FastStream is about to call, below the middlewares inside of this one."""
    while isinstance(call_next, partial):
        call_next = call_next.args[0]
    wrapper = getattr(call_next, "__self__", None)
    return inspect.unwrap(getattr(wrapper, "_original_call", call_next))
