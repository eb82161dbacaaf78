"""`Broker`, the handle that users hold on their broker, and `connect_broker`, which makes one from a URL."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import Any, Final, Self, TypeVar

from .contracts import BrokerBackend, BrokerCapabilities, Envelope, Packet, Publisher, Tracer
from .core.backend_urls import load_backend, url_in_environment
from .core.delays import delay_packets, read_delay
from .core.shared_loop import shared_loop
from .core.tracing import carry_trace
from .errors import BrokerUnavailable, ConfigurationError, InvalidOption, scrub_urls, show
from .message import Message
from .values.durations import Duration, micros, span_text

ENVIRONMENT_VARIABLE: Final = "EFFECTONCE_BROKER"
IN_EVENT_LOOP: Final = (
    "a sync call to a broker inside a running event loop would block it; write `await broker.apublish(…)` (or "
    "`aclose`), or run it with asyncio.to_thread"
)

#: scheme: (module of this package, class of the backend in it)
SCHEMES = {
    "memory": ("backends.memory.broker", "MemoryBrokerBackend"),
    "sqlite": ("backends.sqlite.broker", "SQLiteBrokerBackend"),
    "redis": ("backends.redis.broker", "RedisBrokerBackend"),
    "rediss": ("backends.redis.broker", "RedisBrokerBackend"),
    "redis+cluster": ("backends.redis.broker", "RedisBrokerBackend"),
    "redis+sentinel": ("backends.redis.broker", "RedisBrokerBackend"),
    "redis+unix": ("backends.redis.broker", "RedisBrokerBackend"),
    "unix": ("backends.redis.broker", "RedisBrokerBackend"),
    "valkey": ("backends.redis.broker", "RedisBrokerBackend"),
    "valkeys": ("backends.redis.broker", "RedisBrokerBackend"),
    "redis+babelqueue": ("babelqueue.redis_lists", "RedisBabelQueueBackend"),
    "amqp": ("backends.rabbitmq.broker", "RabbitMQBackend"),
    "amqps": ("backends.rabbitmq.broker", "RabbitMQBackend"),
    "nats": ("backends.nats.broker", "NatsBackend"),
    "kafka": ("backends.kafka.broker", "KafkaBackend"),
    "sqs": ("backends.sqs.broker", "SQSBackend"),
    "servicebus": ("backends.servicebus.broker", "ServiceBusBackend"),
    "pubsub": ("backends.pubsub.broker", "PubSubBackend"),
}

Messages = Message[Any] | Sequence[Message[Any]]

T = TypeVar("T")


class Broker:
    """Where messages are sent to and come from. One object serves sync and async code alike.

    Opening it does nothing until first use. `publish` sends and waits until the broker has confirmed; `apublish` is
    the same in async code. ``envelope`` is how messages are written: by default as CloudEvents.
    """

    def __init__(
        self, backend: BrokerBackend | Callable[[], BrokerBackend], *, envelope: Envelope | None = None
    ) -> None:
        if envelope is None:
            from .envelopes import CloudEvents  # when first needed: most programs import effectonce for its stores

            envelope = CloudEvents()
        self.envelope: Envelope = envelope
        self.tracer: Tracer | None = None
        self._backend = backend
        self._start_fresh()
        _brokers.add(self)

    def _start_fresh(self) -> None:
        self._lock = threading.Lock()
        self._publishers: dict[asyncio.AbstractEventLoop, _SharedPublisher] = {}

    @property
    def backend(self) -> BrokerBackend:
        """The backend, for workers and relays: it opens publishers, consumers and dead letters."""
        if callable(self._backend):
            with self._lock:
                if callable(self._backend):
                    self._backend = self._backend()
        return self._backend

    @property
    def capabilities(self) -> BrokerCapabilities:
        return self.backend.capabilities

    # -- publishing

    def publish(
        self, queue: str, messages: Messages, *, envelope: Envelope | None = None, delay: Duration | None = None
    ) -> None:
        """Send one message or several to ``queue``; return when the broker has confirmed them all.

        Several are sent together, in their order. One that the broker refuses raises its error, which says which were
        confirmed. `BrokerUnavailable`: it is not known which arrived; send them again as they are, with the same ids.

        ``delay``: the broker itself keeps them for so long, and delivers them then. `InvalidOption` where it cannot
        keep one at all, or not for so long, and for a message with an ordering key.
        """
        sequence = _as_sequence(messages)
        delay_s = self._read_delay(sequence, delay)
        with self._trace_publish(queue, sequence) as traced:
            packets = self._encode(queue, traced, envelope, delay_s)
            self.run_blocking(lambda: self._send(queue, packets))

    async def apublish(
        self, queue: str, messages: Messages, *, envelope: Envelope | None = None, delay: Duration | None = None
    ) -> None:
        """`publish`, in a running event loop."""
        sequence = _as_sequence(messages)
        delay_s = self._read_delay(sequence, delay)
        with self._trace_publish(queue, sequence) as traced:
            await self._send(queue, self._encode(queue, traced, envelope, delay_s))

    def _read_delay(self, messages: Sequence[Message[Any]], delay: Duration | None) -> float:
        """Read ``delay`` in seconds. Raises `InvalidOption` for one that this broker, or a message, cannot have."""
        delay_us = read_delay(delay, messages)
        limit_s = self.capabilities.max_delay_s
        if limit_s is not None and delay_us > limit_s * 1e6:
            limit = f"only up to {span_text(round(limit_s * 1e6))}" if limit_s else "not"
            raise InvalidOption(
                f"{self.backend!r} can {limit} keep a message back ({self.capabilities.delay_limit}); an outbox can, "
                "for any time and on any broker: outbox.send(conn, message, delay=…)"
            )
        return delay_us / 1e6

    def _trace_publish(
        self, queue: str, messages: Sequence[Message[Any]]
    ) -> AbstractContextManager[Sequence[Message[Any]]]:
        if self.tracer is None:
            return nullcontext([carry_trace(message) for message in messages])
        return self.tracer.trace_publish(self.capabilities.name, queue, messages)

    def _encode(
        self, queue: str, messages: Sequence[Message[Any]], envelope: Envelope | None, delay_s: float
    ) -> list[Packet]:
        encode = (envelope or self.envelope).encode
        packets = [encode(message, queue) for message in messages]
        return delay_packets(packets, delay_s) if delay_s else packets

    async def _send(self, queue: str, packets: Sequence[Packet]) -> None:
        batch_size = self.capabilities.batch
        refused: dict[str, Exception] = {}  # by id
        refused_keys: set[str] = set()  # ordering keys: what stands behind a refused message is not sent
        for start in range(0, len(packets), batch_size):
            batch = [
                packet for packet in packets[start : start + batch_size] if packet.ordering_key not in refused_keys
            ]
            outcomes = await self._publisher().publish(queue, batch)
            for packet, error in zip(batch, outcomes, strict=True):
                if error is not None:
                    refused[packet.id] = error
                    if packet.ordering_key is not None:
                        refused_keys.add(packet.ordering_key)
        if refused:
            error = next(iter(refused.values()))
            if len(packets) > 1:
                error.add_note(
                    f"of {len(packets)} messages these were refused, and later ones with their ordering keys were not "
                    f"sent: {', '.join(show(id, 40) for id in list(refused)[:10])}"
                )
            raise error

    def _publisher(self) -> _SharedPublisher:
        """The publisher of the running event loop."""
        loop = asyncio.get_running_loop()
        publisher = self._publishers.get(loop)
        if publisher is None:
            publisher = _SharedPublisher(self.backend.publisher())
            with self._lock:
                open_publishers = {loop: other for loop, other in self._publishers.items() if not loop.is_closed()}
                self._publishers = {**open_publishers, loop: publisher}
        return publisher

    # -- for operators

    def check(self, queue: str, *, group: str = "effectonce") -> None:
        """Connect, and raise an error if ``queue`` cannot keep its promise."""
        self.run_blocking(lambda: self.backend.check(queue, group=group))

    def declare(self, queue: str, *, group: str = "effectonce") -> None:
        """Create the queue, its group and its dead letters where they are missing."""
        self.run_blocking(lambda: self.backend.declare(queue, group=group))

    def run_blocking(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run ``work()`` to its end on the event loop that sync calls share; connections last from call to call.

        Raises `SyncAsyncMismatch` inside a running event loop.
        """
        return shared_loop.run(work(), IN_EVENT_LOOP)

    # -- closing

    def close(self) -> None:
        """Close the connections of the sync calls. Async ones belong to their loops: use `aclose` there."""
        if shared_loop.is_open:
            shared_loop.run(self.aclose(), IN_EVENT_LOOP)

    async def aclose(self) -> None:
        """Close the connections of this event loop."""
        publisher = self._publishers.pop(asyncio.get_running_loop(), None)
        if publisher is not None:
            await publisher.close()
        if not callable(self._backend):
            await self._backend.close()

    def after_fork(self) -> None:
        """Start afresh in a forked child. It keeps the parent's connections without closing them, since closing one
        would send bytes on a socket that the parent still uses."""
        _inherited.append(self._publishers)
        self._start_fresh()
        start_backend_fresh = getattr(self._backend, "after_fork", None)
        if start_backend_fresh is not None:
            start_backend_fresh()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"Broker(${ENVIRONMENT_VARIABLE})" if callable(self._backend) else f"Broker({self._backend!r})"


def _as_sequence(messages: Messages) -> Sequence[Message[Any]]:
    sequence = [messages] if isinstance(messages, (Message, Mapping, str, bytes)) else list(messages)
    for message in sequence:
        if not isinstance(message, Message):
            raise ConfigurationError(
                f"a broker publishes a Message, not {type(message).__name__}; write eo.Message(type=…, data=…)"
            )
    return sequence


class RedisBroker(Broker):
    """A broker on the server of your own redis-py client (`redis.Redis`, `redis.asyncio.Redis`, or a cluster).

    It takes the address, the login and TLS from the client, and opens connections of its own: consumers block on them.
    """

    def __init__(
        self,
        *,
        client: Any,
        namespace: str = "eo",
        ack_window: Duration = "30s",
        envelope: Envelope | None = None,
    ) -> None:
        from .backends.redis.broker import RedisClientBrokerBackend

        window = micros(ack_window, "ack_window") / 1e6
        super().__init__(RedisClientBrokerBackend(client, window, namespace), envelope=envelope)


class _SharedPublisher:
    """The publisher of one event loop. Its tasks take turns."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._turn = asyncio.Lock()
        self._has_published = False

    async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
        async with self._turn:
            try:
                outcomes = await self._publisher.publish(queue, packets)
            except BrokerUnavailable:
                # The connection may have died while idle, long before this call: send them again, with the same ids.
                if not self._has_published:
                    raise
                self._has_published = False
                outcomes = await self._publisher.publish(queue, packets)
            self._has_published = True
            return outcomes

    async def close(self) -> None:
        async with self._turn:
            await self._publisher.close()


def connect_broker(url: str | None = None, *, password: Callable[[], str] | None = None, **options: Any) -> Broker:
    """Return the `Broker` of a URL: ``memory://``, ``sqlite:///file.db``, ``redis://``, ``amqp://``, ``nats://``,
    ``kafka://``, ``sqs://``, ``servicebus://``, ``pubsub://``, ``redis+babelqueue://``. Without one, the environment's
    ``EFFECTONCE_BROKER``, on first use.

    Validates the URL and that its driver is installed, and opens nothing. ``envelope=`` is how messages are written.
    ``password=`` is a function that returns the password or token for a connection, where tokens expire: Kafka's
    OAUTHBEARER, RabbitMQ's OAuth 2, Redis.
    """
    return Broker(partial(open_broker, None, password) if url is None else open_broker(url, password), **options)


def open_broker(url: str | None = None, password: Callable[[], str] | None = None) -> BrokerBackend:
    """Make the backend for ``url``; None: for the URL in the environment variable ``EFFECTONCE_BROKER``. ``password``
    returns the password or token for one connection."""
    if url is None:
        url = url_in_environment(ENVIRONMENT_VARIABLE, "connect_broker('sqlite:///queue.db')")
    backend: BrokerBackend = load_backend(url, "broker", SCHEMES, password)
    return backend


def require_broker(broker: object, call: str) -> None:
    """Raise `ConfigurationError` unless ``broker`` is a `Broker`. ``call``: as in `store.require_store`."""
    if isinstance(broker, Broker):
        return
    if isinstance(broker, str):
        url = show(scrub_urls(broker))
        raise ConfigurationError(
            f"{call.format(repr(url))} was given a URL instead of a broker; open the broker once, "
            f"broker = eo.connect_broker({url!r}), and write {call.format('broker')}"
        )
    raise ConfigurationError(
        f"{call.format('broker')} takes a broker, such as eo.connect_broker('sqlite:///queue.db'), and was given "
        f"{show(type(broker).__name__)}"
    )


_brokers: weakref.WeakSet[Broker] = weakref.WeakSet()
_inherited: list[Any] = []  # from the parent process: kept here, because garbage collection would close it


def _after_fork() -> None:
    for broker in list(_brokers):
        broker.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


async def _close_all() -> None:
    """Close what the program left open on the loop of sync calls."""
    for broker in list(_brokers):
        with suppress(Exception):
            await broker.aclose()


shared_loop.before_close.append(_close_all)
