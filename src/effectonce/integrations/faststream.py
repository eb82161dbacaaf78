"""FastStream: a middleware for all its brokers that runs each message once.

    broker = RabbitBroker(middlewares=[Idempotency(store, scope="billing", key="order-id")])

A duplicate gives the first one's result, so that replies and publishers go on. One that arrives while the first runs,
or while the store does not answer, is nacked after a while and comes again; what no redelivery can mend (in doubt,
another body under one key) is rejected, to the dead letters where the broker has them. What a handler raises is
FastStream's to settle, by the subscriber's ``ack_policy``: with ``AckPolicy.NACK_ON_ERROR`` it comes again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from faststream import BaseMiddleware
from faststream.exceptions import NackMessage, RejectMessage

from effectonce.core.codec import Codec
from effectonce.core.flow import Policy, abort, begin, finish, prepare, running
from effectonce.errors import ConfigurationError, EffectOnceError, LeaseLost, MissingKey, ResultNotStored, Retryable
from effectonce.fingerprint import fingerprints
from effectonce.keys import Key, encode_key
from effectonce.policies import check_scope, policy_options
from effectonce.store import DEFAULT_RETENTION, Store

#: The longest pause before a message is given back that cannot be handled yet, in seconds.
PAUSE = 1.0


class Idempotency:
    """What ``middlewares=`` takes; of a broker or a router.

    ``scope`` names the consumer and its handlers: subscribers of different queues that get the same message need
    middlewares of their own. ``key`` is the name of the header that the producer's id is in, or a function of the
    message. Never its ``message_id`` alone, unless the producer sets it: some brokers make one for each delivery.
    ``returns`` is the type of what the handlers return, where that is more than JSON values. Other options are those of
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
        returns: Any = Any,
    ) -> None:
        check_scope(scope)
        if not isinstance(key, str) and not callable(key):
            raise ConfigurationError("key= takes the name of a header, or a function of the message")
        options = policy_options(
            "lease", lease, retention, None, max_attempts, max_run, on_error, on_lapse, on_store_error, permanent
        )
        self.store = store
        self.key = key
        self.policy = Policy(scope=scope, codec=Codec(returns, store.max_result), **options)

    def __call__(self, msg: Any, /, *, context: Any) -> BaseMiddleware[Any, Any]:
        return _Once(self, msg, context=context)

    def key_of(self, message: Any) -> str:
        value = self.key(message) if callable(self.key) else message.headers.get(self.key)
        if value is None:
            raise MissingKey(f"a message of scope {self.policy.scope!r} has no key; its producer must give it one")
        return encode_key(value.decode() if isinstance(value, bytes) else value)


class _Once(BaseMiddleware[Any, Any]):
    def __init__(self, guard: Idempotency, msg: Any, *, context: Any) -> None:
        super().__init__(msg, context=context)
        self._guard = guard

    async def consume_scope(self, call_next: Any, msg: Any) -> Any:
        guard = self._guard
        try:
            run = prepare(guard.store.engine, guard.policy, guard.key_of(msg), fingerprints(bytes(msg.body)))
            side = run.engine.async_side()
            pending = begin(run, side)
            if pending is not None:
                await pending
        except ResultNotStored:
            return None
        except Retryable as error:
            await asyncio.sleep(min(error.retry_after, PAUSE))
            raise NackMessage from error
        except ConfigurationError:
            raise
        except EffectOnceError as error:
            raise RejectMessage from error
        if run.replayed:
            return run.value
        running.set(run)
        try:
            try:
                value = await call_next(msg)
            except BaseException as error:
                await abort(run, side, error)
                raise
            pending = finish(run, side, value)
            if pending is not None:
                await pending
            return value
        except (Retryable, LeaseLost) as error:  # it ran, and that could not be recorded: it comes again
            raise NackMessage from error
        finally:
            run.ended()
