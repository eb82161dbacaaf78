"""`Worker`: handlers for the messages of a broker, each of whose effects happens once.

A `Worker` is what its program has set up: handlers, settings and companions. It is changed before it serves, on one
thread. What lives only while it serves is in one `WorkerRun`, on the event loop of `serve`; another `serve` makes
another one. Only `stop` may be called from any thread.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Literal, TypeVar

from msgspec.structs import replace

from effectonce.broker import Broker, require_broker
from effectonce.contracts import Envelope, HandlerTracer
from effectonce.core.events import Events
from effectonce.core.retry import Retry
from effectonce.core.shared_loop import shared_loop
from effectonce.core.signals import serve_until_signalled
from effectonce.errors import ConfigurationError, show
from effectonce.guard.introspection import name_of
from effectonce.inbox.inbox import Inbox
from effectonce.keys import FingerprintSpec, KeySpec
from effectonce.store import DEFAULT_RETENTION, MAX_RESULT_BYTES, Store, require_store
from effectonce.values.durations import Duration, micros
from effectonce.values.queue_names import require_name

from .consumer_factory import open_consumers
from .message_reader import MessageReader
from .outage_pause import wait_until_up
from .queue_consumer import QueueConsumer, Unknown
from .recovery_loop import Recoverable, RecoveryLoop, RedeliveryChecked, Resumable
from .redrive_records import InboxRedrive, StoreRedrive
from .routes import HandlerOptions, HandlerRoute, make_route
from .startup_checks import check_key, check_spans, fit_lease, redelivery_s
from .transaction_runner import TransactionRunner
from .worker_run import Companion, WorkerRun

log = logging.getLogger("effectonce")

F = TypeVar("F", bound=Callable[..., Any])


class Worker:
    """Consumes queues of ``broker`` and runs each message's handler so that its effect happens once.

    With ``store=`` (modes L and S): claim, run, record, ack, in this order; what `once` promises. The broker's acks
    follow the record, so nothing is lost; duplicates are acked, or delayed while the first one runs.

    With ``inbox=`` and ``connect=`` (mode T): each message in a transaction of its own, on a connection of ``connect``
    (as in `Inbox.handler`), with which handlers are called: ``(connection, message)``. The row and the effect are
    committed together, and acked after that: nothing is lost, nothing doubled.

    - ``name``: the consumer. Workers of one name share the work; it is a part of every handler's scope.
    - ``envelope``: how messages are read; default: the broker's.
    - ``prefetch``: the most messages that run or wait to; default: twice what the handlers of a queue can run.
    - ``drain``: how long running handlers may take to end after `stop`; the messages of the others are given back.
    - ``unknown``: what to do with a message whose type no handler takes: ``"dead"`` letters, ``"delete"``, ``"retry"``
      (another worker may know it), or ``"fail"``: the worker stops.
    - ``listen``: where /metrics, /healthz and /readyz are served, ``"127.0.0.1:9464"`` for example; default: nowhere.
      ``"0.0.0.0:9464"`` is open to the network, without a login. Needs ``pip install 'effectonce[prometheus]'``.
    - ``redrive_within``: how long after its end a message may still be redriven; records must outlive that, too.
    - ``recover``: `Intents` and sagas whose unfinished work it resumes about every ``recover_every``, where another
      process has left it: ``recover=(payments, checkout)``. The worker refuses to start if a message may be delivered
      again after the store, or the provider, has forgotten its intent (`Intents.check`).
    """

    def __init__(
        self,
        broker: Broker,
        *,
        store: Store | None = None,
        inbox: Inbox | None = None,
        connect: Callable[[], Any] | None = None,
        name: str = "worker",
        envelope: Envelope | None = None,
        prefetch: int | None = None,
        drain: Duration = "30s",
        unknown: Unknown = "dead",
        redrive_within: Duration | None = None,
        recover: Sequence[Recoverable | Resumable] = (),
        recover_every: Duration = "30s",
        listen: str | None = None,
    ) -> None:
        require_broker(broker, "Worker({}, …)")
        if store is not None:
            require_store(store, "Worker(…, store={})")
        if inbox is not None and not isinstance(inbox, Inbox):
            raise ConfigurationError(
                f"inbox= takes an eo.Inbox(scope=…), not {type(inbox).__name__}; connect= opens the connections"
            )
        if (store is None) == (inbox is None):
            raise ConfigurationError(
                "a Worker needs either store=, which remembers what was done (eo.connect('redis://…')), or inbox= and "
                "connect=, where the effects are in a database of yours"
            )
        if (inbox is None) != (connect is None):
            raise ConfigurationError("inbox= and connect= go together: connect= gives the connection of one message")
        if unknown not in ("dead", "delete", "retry", "fail"):
            raise ConfigurationError(f"unknown={unknown!r} is none of 'dead', 'delete', 'retry' and 'fail'")
        if prefetch is not None and not 0 < prefetch <= 100_000:
            raise ConfigurationError(f"prefetch={prefetch!r} is not a number of messages; give 1 to 100000")
        if not all(isinstance(tool, Recoverable | Resumable) for tool in recover):
            raise ConfigurationError(f"recover={recover!r}: give a list of Intents and sagas")
        self.broker = broker
        self.store = store
        self.inbox = inbox
        self._connect = connect
        #: What runs the transactions of each handler; none where the worker has ``store=``.
        self.transaction_runners: dict[HandlerRoute, TransactionRunner] = {}
        self.name = require_name(name, "worker")
        self.envelope = envelope if envelope is not None else broker.envelope
        self.routes: list[HandlerRoute] = []
        self.prefetch = prefetch
        self._drain_s = micros(drain, "drain") / 1e6
        self.unknown: Unknown = unknown
        self.redrive_within_s = 0.0 if redrive_within is None else micros(redrive_within, "redrive_within") / 1e6
        #: Where /metrics, /healthz and /readyz are served.
        self.listen = listen
        #: Set by `telemetry.opentelemetry`, before `serve`. It wraps the handlers that are there by then, and `handler`
        #: wraps those that come later.
        self.tracer: HandlerTracer | None = None
        self._events = Events()
        #: Whether SIGINT, Ctrl-C, has ended `run`.
        self.interrupted = False
        self._companions: list[Companion] = []
        self._recovered = tuple(recover)
        if recover:
            self.add(RecoveryLoop(self._recovered, micros(recover_every, "recover_every") / 1e6))
        self._current_run: WorkerRun | None = None  # while it serves
        _workers.add(self)

    # -- handlers and companions

    def handler(
        self,
        queue: str,
        *,
        type: str | None = None,
        key: KeySpec | None = None,
        scope: str | None = None,
        mode: Literal["lease", "seen"] = "lease",
        retry: Retry | None = None,
        concurrency: int | None = None,
        batch: bool = False,
        to: str | None = None,
        ack: Literal["last", "first"] = "last",
        lease: Duration | None = None,
        retention: Duration | None = None,
        max_run: Duration = "1h",
        on_error: Literal["release", "doubt"] = "release",
        on_lapse: Literal["rerun", "doubt"] = "rerun",
        permanent: tuple[type[BaseException], ...] = (),
        fingerprint: FingerprintSpec | Literal[False] | None = None,
    ) -> Callable[[F], F]:
        """Let the decorated function handle the messages of ``queue`` whose type is ``type`` (None: all others).

        It takes the `Message`; annotated as ``Message[OrderPaid]``, the data is read as that. ``async def`` runs in
        the event loop, a plain ``def`` in a thread. Raising means: not done, try again as ``retry`` says.

        What it returns is not kept. With ``to=`` it returns a `Message`, or a list of them: these are kept in the
        record, sent to that queue before the ack, and sent again, with the same ids, if that is in doubt.

        ``ack="first"``, with ``store=`` only, claims the message, acks it, and then runs the handler: at most once. A
        crash may lose the message, and nothing runs twice. What a crash has left unfinished is in doubt in the store;
        a handler that raises has failed for good, or is in doubt with ``on_error="doubt"``.

        The other options are those of `once`. Unless given, ``scope`` is queue/type/worker, and ``lease`` is 30 s, or
        half of the broker's ack window where that is shorter. ``key="topic:partition:offset"`` is for Kafka's records
        that came without a key; `keys.KAFKA_OFFSET` says what it cannot recognise.

        With an inbox the function takes ``(connection, message)``, and ``batch=True`` says that all of its effects are
        in the transaction: up to 50 messages then share one. If one of them fails they are redone one by one. Its
        scope ends with the inbox's instead of the worker's name.
        """
        if not isinstance(queue, str):
            raise ConfigurationError(
                f"@worker.handler takes the name of a queue, not {show(name_of(queue))}; "
                "write @worker.handler('orders')"
            )
        default_retention = DEFAULT_RETENTION if self.inbox is None else self.inbox.retention_us / 1e6
        options = HandlerOptions(
            key=key,
            scope=scope,
            mode=mode,
            retry=retry,
            concurrency=concurrency,
            batch=batch,
            to=to,
            ack=ack,
            lease=lease,
            retention=default_retention if retention is None else retention,
            max_run=max_run,
            on_error=on_error,
            on_lapse=on_lapse,
            permanent=permanent,
            fingerprint=fingerprint,
        )

        def decorate(function: F) -> F:
            route = make_route(
                function,
                queue,
                type,
                options,
                consumer=self.name if self.inbox is None else self.inbox.scope,
                transactional=self.inbox is not None,
                max_result=MAX_RESULT_BYTES if self.store is None else self.store.max_result,
            )
            if any(other.queue == queue and other.type == type for other in self.routes):
                what = "messages of other types" if type is None else f"type {type!r}"
                raise ConfigurationError(f"queue {queue!r} has a handler for {what} already: a message has one handler")
            if self.store is not None:
                self.store.take_scope(route.policy.scope, function)
            if self.tracer is not None:
                route.function = self.tracer.trace_handler(queue, function)
            self._add_route(route)
            return function

        return decorate

    def _add_route(self, route: HandlerRoute) -> None:
        if self.inbox is not None and self._connect is not None:
            self.transaction_runners[route] = TransactionRunner(route, self.inbox, self._connect)
        self.routes.append(route)

    def replicate(self, broker: Broker, *, prefetch: int | None = None) -> Worker:
        """Make a worker with the handlers, the store or inbox, and the name of this one, on another broker: for tests,
        where it stands for another process of this worker."""
        replica = Worker(
            broker,
            store=self.store,
            inbox=self.inbox,
            connect=self._connect,
            name=self.name,
            envelope=self.envelope,
            prefetch=prefetch or self.prefetch,
            unknown=self.unknown,
        )
        for route in self.routes:
            replica._add_route(replace(route))
        _workers.discard(replica)  # `find_routes` finds the worker itself
        return replica

    def add(self, companion: Companion) -> None:
        """Run ``companion`` (a `Relay` or another worker, say) in this worker's process, as long as the worker runs.

        With ``listen=`` its metrics and its readiness are served, too.
        """
        self._companions.append(companion)

    @property
    def companions(self) -> Sequence[Companion]:
        """What runs beside the handlers, by `add`."""
        return self._companions

    # -- running

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then drain. A second signal gives everything back at once."""
        self.interrupted = shared_loop.drive(self._serve_and_close())

    async def _serve_and_close(self) -> bool:
        """Serve, and close the broker and the store, which `run` owns. Returns whether SIGINT has ended it."""
        try:
            return await serve_until_signalled(self.serve, self.stop)
        finally:
            await self.broker.aclose()
            if self.store is not None:
                await self.store.aclose()

    def stop(self) -> None:
        """Receive no more, let running handlers end within ``drain``, and give the rest back. A second call does not
        wait for them. You may call it from any thread; `serve` returns when it is done."""
        run = self._current_run
        if run is not None:
            run.stop()

    async def serve(self) -> None:
        """Check, then consume until `stop` is called. Raises what ended it otherwise, when it has drained.

        `ConfigurationError`: it could not keep its promise, or the URL or credentials are wrong. A broker or a store
        that is away is waited for.
        """
        if not self.routes:
            raise ConfigurationError("this worker has no handlers; decorate one with @worker.handler('queue')")
        if self._current_run is not None:
            raise ConfigurationError("this worker is already serving; create another Worker for another event loop")
        run = self._current_run = WorkerRun(self.name, self._companions, self._drain_s)
        try:
            with self._endpoints():
                await run.serve(self.check, lambda: open_consumers(self, run))
        finally:
            self._current_run = None

    def run_check(self) -> None:
        """`check`, outside of an event loop."""
        shared_loop.run(self.check())

    async def check(self) -> None:
        """Raise an error for what could not keep its promise; wait for a server that is only away, and log that."""
        capabilities = self.broker.capabilities
        for route in self.routes:
            check_key(route, capabilities)
            fit_lease(route, capabilities)
            check_spans(route, capabilities, self.redrive_within_s)
        if (store := self.store) is not None:
            await wait_until_up(f"store {store!r}", lambda: asyncio.to_thread(store.check))
        spans = [redelivery_s(route, capabilities, self.redrive_within_s) for route in self.routes]
        redelivery = max(spans, default=0.0)
        for tool in self._recovered:
            if redelivery and isinstance(tool, RedeliveryChecked):
                await asyncio.to_thread(tool.check, redelivery)
        for runner in self.transaction_runners.values():
            await wait_until_up(f"database of {runner.route.name}", runner.check)
        for queue in self.queues:
            await wait_until_up(f"queue {queue}", partial(self._prepare_queue, queue))

    async def _prepare_queue(self, queue: str) -> None:
        await self.broker.backend.declare(queue, group=self.name)
        await self.broker.backend.check(queue, group=self.name)

    def routes_of(self, queue: str) -> list[HandlerRoute]:
        """The handlers of ``queue``."""
        return [route for route in self.routes if route.queue == queue]

    @property
    def queues(self) -> list[str]:
        return list(dict.fromkeys(route.queue for route in self.routes))

    @property
    def events(self) -> Events:
        """Where events of this worker are emitted: the hooks of its store, or its own where it has no store."""
        return self._events if self.store is None else self.store.runtime

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop that it serves on; None while it does not."""
        return None if self._current_run is None else self._current_run.loop

    @property
    def consumers(self) -> list[QueueConsumer]:
        """The queues as they are consumed; none while it does not serve."""
        return [] if self._current_run is None else self._current_run.consumers

    @property
    def phase(self) -> Literal["stopped", "starting", "running", "draining"]:
        """Which part of `serve` it is in; ``stopped`` outside of it."""
        if self._current_run is None:
            return "stopped"
        if self._current_run.stopping:
            return "draining"
        return "running" if self.consumers else "starting"

    def _endpoints(self) -> AbstractContextManager[Any]:
        if self.listen is None:
            return nullcontext()
        from effectonce.telemetry.endpoints import Endpoints  # only on demand: telemetry stands above the tools

        return Endpoints(self, self.listen, self._companions)

    # -- for its dead letters

    def reader(self, queue: str) -> MessageReader:
        """Make a reader for the messages of ``queue``."""
        return MessageReader(self.routes_of(queue), self.envelope)

    def redrive_records(self) -> StoreRedrive | InboxRedrive:
        """Make the object that reads and changes the records of a redriven message."""
        return InboxRedrive(self.transaction_runners) if self.store is None else StoreRedrive(self.store)

    def __repr__(self) -> str:
        return f"<worker {self.name} on {self.broker!r}>"


_workers: weakref.WeakSet[Worker] = weakref.WeakSet()


def find_routes(function: Callable[..., Any]) -> list[tuple[Worker, HandlerRoute]]:
    """Find the workers of this process that ``function`` is a handler of, and its routes there."""
    handler = inspect.unwrap(function)
    return [
        (worker, route)
        for worker in list(_workers)
        for route in worker.routes
        if inspect.unwrap(route.function) is handler
    ]
