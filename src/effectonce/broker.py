"""The handle on a broker, and how one is opened."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from types import TracebackType
from typing import Any, Self, TypeVar

from .contracts import BrokerBackend, BrokerCapabilities, Envelope, Packet, Publisher, Tracer
from .core.registry import load, url_in_environment
from .errors import BrokerUnavailable, SyncAsyncMismatch, show
from .message import Message

T = TypeVar("T")

ENVIRONMENT = "EFFECTONCE_BROKER"

#: scheme: (module of this package, class of the backend in it)
SCHEMES = {
    "memory": ("backends.memory.broker", "MemoryBrokerBackend"),
    "sqlite": ("backends.sqlite.broker", "SQLiteBrokerBackend"),
    "redis": ("backends.redis.broker", "RedisBrokerBackend"),
    "rediss": ("backends.redis.broker", "RedisBrokerBackend"),
    "redis+babelqueue": ("babelqueue.redis_lists", "RedisBabelQueueBackend"),
    "amqp": ("backends.rabbitmq.broker", "RabbitMQBackend"),
    "amqps": ("backends.rabbitmq.broker", "RabbitMQBackend"),
    "nats": ("backends.nats.broker", "NatsBackend"),
    "kafka": ("backends.kafka.broker", "KafkaBackend"),
    "sqs": ("backends.sqs.broker", "SQSBackend"),
    "servicebus": ("backends.servicebus.broker", "ServiceBusBackend"),
}

Messages = Message[Any] | Sequence[Message[Any]]


class Broker:
    """Where messages are sent to and come from. One object serves sync and async code alike.

    Opening it does nothing until first use. `publish` sends and waits until the broker has confirmed; `apublish` is
    the same in async code. ``envelope`` is how messages are written: CloudEvents, unless told.
    """

    def __init__(
        self, backend: BrokerBackend | Callable[[], BrokerBackend], *, envelope: Envelope | None = None
    ) -> None:
        self.envelope: Envelope = envelope if envelope is not None else _default_envelope()
        self.tracer: Tracer | None = None
        self._make = backend if callable(backend) else None
        self._backend: BrokerBackend | None = None if callable(backend) else backend
        self._fresh()
        _handles.add(self)

    def _fresh(self) -> None:
        self._lock = threading.Lock()
        self._sync_lock = threading.RLock()
        self._runner: asyncio.Runner | None = None
        self._lines: dict[asyncio.AbstractEventLoop, _Line] = {}

    @property
    def backend(self) -> BrokerBackend:
        """What opens publishers, consumers and dead letters; workers and relays use it."""
        backend = self._backend
        if backend is None:
            with self._lock:
                if self._backend is None:
                    self._backend = self._make()  # type: ignore[misc]
                backend = self._backend
        return backend

    @property
    def capabilities(self) -> BrokerCapabilities:
        return self.backend.capabilities

    # -- publishing

    def publish(self, queue: str, messages: Messages, *, envelope: Envelope | None = None) -> None:
        """Send one message or several to ``queue``; return when the broker has confirmed them all.

        Several are sent together, in their order. One that the broker refuses raises its error, which says which were
        confirmed. `BrokerUnavailable`: it is not known which arrived; send them again as they are, with the same ids.
        """
        with self._traced(queue, messages) as traced:
            packets = self._packets(queue, traced, envelope)
            self.run_blocking(lambda: self._send(queue, packets))

    async def apublish(self, queue: str, messages: Messages, *, envelope: Envelope | None = None) -> None:
        """`publish`, in a running event loop."""
        with self._traced(queue, messages) as traced:
            await self._send(queue, self._packets(queue, traced, envelope))

    def _traced(self, queue: str, messages: Messages) -> AbstractContextManager[Messages]:
        if self.tracer is None:
            return nullcontext(messages)
        several = [messages] if isinstance(messages, Message) else messages
        return self.tracer.sending(self.capabilities.name, queue, several)

    def _packets(self, queue: str, messages: Messages, envelope: Envelope | None) -> list[Packet]:
        encode = (envelope or self.envelope).encode
        if isinstance(messages, Message):
            return [encode(messages, queue)]
        return [encode(message, queue) for message in messages]

    async def _send(self, queue: str, packets: Sequence[Packet]) -> None:
        batch = self.capabilities.batch
        refused: dict[str, Exception] = {}
        keys: set[str] = set()  # of those that were refused: what comes behind them in another batch is not sent
        for start in range(0, len(packets), batch):
            part = [packet for packet in packets[start : start + batch] if packet.ordering_key not in keys]
            outcomes = await self._line().publish(queue, part)
            for packet, error in zip(part, outcomes, strict=True):
                if error is not None:
                    refused[packet.id] = error
                    if packet.ordering_key is not None:
                        keys.add(packet.ordering_key)
        if refused:
            error = next(iter(refused.values()))
            if len(packets) > 1:
                error.add_note(
                    f"of {len(packets)} messages these were refused, and what stands behind them in the same order was "
                    f"not sent: {', '.join(show(id, 40) for id in list(refused)[:10])}"
                )
            raise error

    def _line(self) -> _Line:
        """The publisher of the running event loop."""
        loop = asyncio.get_running_loop()
        line = self._lines.get(loop)
        if line is None:
            with self._lock:
                self._lines = {each: line for each, line in self._lines.items() if not each.is_closed()}
                line = self._lines[loop] = _Line(self.backend.publisher())
        return line

    # -- people

    def check(self, queue: str, *, group: str = "effectonce") -> None:
        """Connect, and raise what would keep ``queue`` from its promise."""
        self.run_blocking(lambda: self.backend.check(queue, group=group))

    def declare(self, queue: str, *, group: str = "effectonce") -> None:
        """Create the queue, its group and its dead letters where they are missing."""
        self.run_blocking(lambda: self.backend.declare(queue, group=group))

    def run_blocking(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run ``work()`` on this handle's own event loop, which keeps its connections from call to call. Raises
        `SyncAsyncMismatch` where the caller's thread runs an event loop, which this would block."""
        _refuse_in_loop()
        with self._sync_lock:
            if self._runner is None:
                # With a factory of its own, a Runner leaves the thread's current event loop alone.
                self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
            return self._runner.run(_awaited(work))

    # -- the end

    def close(self) -> None:
        """Close the connections of the sync calls. Async ones belong to their loops: use `aclose` there."""
        self._close(None)

    def _close(self, within: float | None) -> None:
        with self._sync_lock:
            if self._runner is None:
                return
            _refuse_in_loop()
            with self._runner as runner:
                self._runner = None
                runner.run(asyncio.wait_for(self.aclose(), within))

    def at_exit(self) -> None:
        """What nobody has closed: else its driver complains of it, at length, in the last lines of a program."""
        if self._sync_lock.acquire(timeout=1):  # a thread that is a daemon may be in the middle of a call
            try:
                self._close(2.0)
            finally:
                self._sync_lock.release()

    async def aclose(self) -> None:
        """Close the connections of this event loop."""
        line = self._lines.pop(asyncio.get_running_loop(), None)
        if line is not None:
            await line.close()
        if self._backend is not None:
            await self._backend.close()

    def after_fork(self) -> None:
        """The parent's connections are not the child's to use or close: they are kept, untouched."""
        _inherited.append((self._runner, self._lines))
        self._fresh()
        renew = getattr(self._backend, "after_fork", None)
        if renew is not None:
            renew()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"Broker({self._backend!r})" if self._backend is not None else f"Broker(${ENVIRONMENT})"


class _Line:
    """One publisher and those who wait for it, on one event loop."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._turn = asyncio.Lock()
        self._worked = False

    async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
        async with self._turn:
            try:
                outcomes = await self._publisher.publish(queue, packets)
            except BrokerUnavailable:
                # The connection may have died while idle, long before this call. Sent again with the same ids.
                if not self._worked:
                    raise
                self._worked = False
                outcomes = await self._publisher.publish(queue, packets)
            self._worked = True
            return outcomes

    async def close(self) -> None:
        async with self._turn:
            await self._publisher.close()


def _default_envelope() -> Envelope:
    from .envelopes import CloudEvents  # when first needed: most programs import effectonce for its stores

    return CloudEvents()


def _refuse_in_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise SyncAsyncMismatch(
        "a sync call to a broker inside a running event loop would block it; write `await broker.apublish(…)` (or "
        "`aclose`), or run it with asyncio.to_thread"
    )


async def _awaited(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    return await work()


def connect_broker(url: str | None = None, **options: Any) -> Broker:
    """A `Broker` by URL: ``memory://``, ``sqlite:///file.db``, ``redis://``, ``amqp://``, ``nats://``, ``kafka://``,
    ``sqs://``, ``servicebus://``, ``redis+babelqueue://``. Without one, the environment's ``EFFECTONCE_BROKER``, on
    first use.

    Validates the URL and that its driver is installed, and opens nothing. ``envelope=`` is how messages are written.
    """
    if url is None:
        return Broker(_from_environment, **options)
    return Broker(open_broker(url), **options)


def _from_environment() -> BrokerBackend:
    return open_broker(url_in_environment(ENVIRONMENT, "connect_broker('sqlite:///queue.db')"))


def open_broker(url: str) -> BrokerBackend:
    """The backend for ``url``: ours, or one that an installed package offers as ``effectonce.brokers``."""
    backend: BrokerBackend = load(url, "broker", SCHEMES)
    return backend


_handles: weakref.WeakSet[Broker] = weakref.WeakSet()
_inherited: list[Any] = []


def _after_fork() -> None:
    for handle in list(_handles):
        handle.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@atexit.register
def _at_exit() -> None:
    for handle in list(_handles):
        with suppress(Exception):
            handle.at_exit()
