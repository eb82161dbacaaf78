"""A worker's handler under trial: the worker itself receives, decodes, claims, runs, records and settles.

Each delivery is a life of another process: a replica of the worker on a broker in memory, whose messages outlive it.
Its store is one in memory, too; with an inbox it is the database that ``connect=`` opens. A process that is killed
reaches neither store, broker nor database any more; what it held is delivered again when its ack window is over.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, cast

from effectonce.backends.memory.broker import MemoryBrokerBackend
from effectonce.broker import Broker
from effectonce.contracts import Delivery, Packet
from effectonce.errors import BrokerUnavailable, ConfigurationError, show
from effectonce.message import Message
from effectonce.sessions import BaseDriverSession, wrap_sessions
from effectonce.store import Store, all_stores
from effectonce.worker.routes import HandlerRoute
from effectonce.worker.worker import Worker, find_routes

from .fault_points import FaultInjectingBackend, FaultInjector, Killed, trace_lines
from .lockstep import trace_in_lockstep
from .subjects import (
    CONCURRENT_DELIVERIES,
    LOST_REMEDY,
    DeliveryResult,
    DeliveryStatus,
    Operation,
    drop_frames,
    killed_before,
    muted_log,
    renew_message,
)
from .wrapper import Wrapper

#: Longer than the lease of any sensible handler: when a message is redelivered, the claim of a dead worker is over.
ACK_WINDOW_S: Final = 12 * 3600.0
POLL_S: Final = 0.002
#: How long a delivery may take to be settled, before it is given up as a handler that does not end.
SETTLE_TIMEOUT_S: Final = 60.0

ACK_FIRST_REMEDY: Final = (
    "ack='first' promises no more: what a kill interrupts is lost. If it must not be lost, leave ack= out; then the "
    "effect may be repeated."
)


def find_route(function: Callable[..., Any]) -> tuple[Worker, HandlerRoute] | None:
    """Find the worker that ``function`` is a handler of; None: of no worker. Raises `ConfigurationError` where there
    are several."""
    routes = find_routes(function)
    if len(routes) > 1:
        places = ", ".join(f"queue {route.queue} of worker {worker.name}" for worker, route in routes)
        raise ConfigurationError(
            f"{routes[0][1].name} handles messages in several places ({places}); name the worker and its queue instead"
        )
    return routes[0] if routes else None


def only_queue(worker: Worker) -> str:
    """Return the one queue of ``worker``. Raises `ConfigurationError` where there is none, or a choice."""
    if len(worker.queues) == 1:
        return worker.queues[0]
    if not worker.queues:
        raise ConfigurationError(f"worker {worker.name} has no handlers; decorate one with @worker.handler('queue')")
    raise ConfigurationError(
        f"worker {worker.name} has several queues, {', '.join(worker.queues)}: say which one the message is for "
        "(effectonce verify shop.worker:worker:orders; assert_idempotent(worker, message, queue='orders'))"
    )


class WorkerSubject:
    """The handler of a worker that takes ``message`` from ``queue``."""

    is_async = True
    unguarded_remedy = (
        "Its worker took the second delivery for another message: let key= of the handler name what says that it is "
        "the same operation."
    )

    def __init__(self, worker: Worker, queue: str, message: Message[Any]) -> None:
        self._worker = worker
        self._queue = queue
        self._message = message
        if queue not in worker.queues:
            queues = ", ".join(worker.queues) or "none"
            raise ConfigurationError(f"worker {worker.name} has no handler for queue {show(queue)!r}; it has {queues}")
        routes = {route.type: route for route in worker.routes_of(queue)}
        route = routes.get(message.type, routes.get(None))
        if route is None:
            known = ", ".join(show(repr(kind)) for kind in routes)
            raise ConfigurationError(
                f"no handler of queue {show(queue)!r} takes type {show(message.type)!r} (they take: {known}); give the "
                "message another type="
            )
        self.name = route.name
        self.stores: Collection[Store] = all_stores()
        self.redelivery_pause_us = round(ACK_WINDOW_S * 1e6) + 1
        self.may_overlap = route.policy.seen_set
        self.lost_remedy = ACK_FIRST_REMEDY if route.acks_first else LOST_REMEDY

    def may_rerun(self, clean: FaultInjector) -> bool:
        return self._worker.store is not None  # with an inbox, the record and the effect are one transaction

    def make_backend(self) -> FaultInjectingBackend:
        return FaultInjectingBackend(survives_kills=True)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        with muted_log():
            yield

    def begin(self, backend: FaultInjectingBackend) -> Operation:
        packet = self._worker.envelope.encode(renew_message(self._message), self._queue)
        return _TrialMessage(self._worker, self._queue, packet, backend)


class _TrialMessage:
    """One message in a queue in memory, and the processes that take it from there."""

    def __init__(self, worker: Worker, queue: str, packet: Packet, backend: FaultInjectingBackend) -> None:
        self._worker = worker
        self._queue = queue
        self._packet = packet
        self._backend = backend
        self._broker = MemoryBrokerBackend(clock=backend.clock, ack_window=ACK_WINDOW_S)

    async def deliver(self, injector: FaultInjector) -> DeliveryResult:
        if not self._group.messages:  # it is new, or was acked: the producer sends it again
            await self._publish()
        worker = self._worker.replicate(Broker(_FaultyBroker(self._broker, injector)))
        with injector.trace_steps(new_threads=True):
            outcome = await self._serve([worker], injector)
        if injector.at is not None:
            gc.collect()  # a fault on the last line of a `with` leaves its connection open, with its locks
        if injector.killed:
            return DeliveryResult(killed_before(injector), self._status())
        return DeliveryResult(outcome, self._status())

    async def deliver_concurrently(self) -> DeliveryResult:
        injector = FaultInjector()
        brokers = [Broker(_FaultyBroker(self._broker, injector)) for _ in range(CONCURRENT_DELIVERIES)]
        for _ in brokers:
            await self._publish()
        workers = [self._worker.replicate(broker, prefetch=1) for broker in brokers]
        with trace_lines(trace_in_lockstep(CONCURRENT_DELIVERIES), new_threads=True):
            outcome = await self._serve(workers, injector)
        return DeliveryResult(
            f"{CONCURRENT_DELIVERIES} deliveries at once, to as many processes: {outcome}", self._status()
        )

    @property
    def _group(self) -> Any:
        return self._broker.queues.group(self._queue, self._worker.name)

    async def _publish(self) -> None:
        await self._broker.declare(self._queue, group=self._worker.name)
        await self._broker.publisher().publish(self._queue, [self._packet])

    def _status(self) -> DeliveryStatus:
        if self._group.messages:
            return "redeliver"
        return "parked" if self._group.dead_letters else "done"

    async def _serve(self, workers: Sequence[Worker], injector: FaultInjector) -> str:
        """Let ``workers`` serve until every message that is visible was settled, or they were killed. Returns what they
        did with them."""
        settled: list[str] = []
        for worker in workers:
            cast(_FaultyBroker, worker.broker.backend).settled = settled
        injector.armed = False  # what a worker does at its start is not a step of a delivery
        now = self._backend.clock.now()
        awaited = sum(message.visible_at <= now for message in self._group.messages.values())
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        with _sessions_with_faults(injector):
            serving = [asyncio.ensure_future(worker.serve()) for worker in workers]
            try:
                while len(settled) < awaited and not injector.killed and not any(task.done() for task in serving):
                    if time.monotonic() > deadline:
                        started = all(worker.phase != "starting" for worker in workers)
                        cause = "does its handler end?" if started else "does the database of connect= answer?"
                        raise ConfigurationError(
                            f"{self._worker!r} has not settled the message in {SETTLE_TIMEOUT_S:g} s; {cause}"
                        )
                    await asyncio.sleep(POLL_S)
            finally:
                for worker in workers:
                    worker.stop()
                    if injector.killed or len(settled) < awaited:
                        worker.stop()  # it waits for nothing
                results = await _until_ended(workers, serving, injector)
        errors = [result for result in results if isinstance(result, BaseException)]
        for error in errors:
            drop_frames(error)
        if errors and not injector.killed:
            return f"its worker stopped: {type(errors[0]).__name__}: {errors[0]}"
        return ", ".join(settled) or "nothing was settled"


async def _until_ended(
    workers: Sequence[Worker], serving: Sequence[asyncio.Task[None]], injector: FaultInjector
) -> list[BaseException | None]:
    """Wait for ``workers``, which drain. One that acks first is still running its handler then; killed in it, it waits
    for nothing."""
    ended = asyncio.gather(*serving, return_exceptions=True)
    while not ended.done():
        if injector.killed:
            for worker in workers:
                worker.stop()
            break
        await asyncio.wait([ended], timeout=POLL_S)
    return await ended


@contextmanager
def _sessions_with_faults(injector: FaultInjector) -> Iterator[None]:
    def wrap(session: BaseDriverSession) -> BaseDriverSession:
        return cast(BaseDriverSession, _FaultySession(session, injector))

    with wrap_sessions(wrap):
        yield


class _FaultySession(Wrapper):
    """A database session whose statements are steps. That of a killed process can only be rolled back, as its database
    does."""

    def __init__(self, inner: BaseDriverSession, injector: FaultInjector) -> None:
        super().__init__(inner)
        self._injector = injector

    async def begin(self) -> None:
        self._injector.reach_step("begin: sent to the database", "database")
        await self._inner.begin()

    async def commit(self) -> None:
        self._injector.reach_step("commit: sent to the database", "database")
        await self._inner.commit()
        self._injector.reach_step("commit: done, and the reply is on its way", "database")

    async def rows(self, sql: str, params: Sequence[Any] = ()) -> Any:
        self._reach_statement(sql)
        return await self._inner.rows(sql, params)

    async def named_rows(self, sql: str, params: Sequence[Any] = ()) -> Any:
        self._reach_statement(sql)
        return await self._inner.named_rows(sql, params)

    def _reach_statement(self, sql: str) -> None:
        self._injector.reach_step(f"{show(sql.strip().partition(chr(10))[0], 60)}: sent to the database", "database")


class _FaultyBroker(Wrapper):
    """A broker in memory as one process sees it, whose deliveries and settlements are steps."""

    def __init__(self, inner: MemoryBrokerBackend, injector: FaultInjector) -> None:
        super().__init__(inner)
        self.injector = injector
        self.settled: list[str] = []

    def consumer(self, queue: str, *, group: str, prefetch: int) -> Any:
        return _FaultyConsumer(self, self._inner.consumer(queue, group=group, prefetch=prefetch))


class _FaultyConsumer(Wrapper):
    def __init__(self, broker: _FaultyBroker, inner: Any) -> None:
        super().__init__(inner)
        self._broker = broker

    async def receive(self, limit: int, wait: float) -> Sequence[Delivery]:
        injector = self._broker.injector
        if injector.killed:
            await asyncio.sleep(wait)
            return []
        deliveries: Sequence[Delivery] = await self._inner.receive(limit, wait)
        try:
            for _ in deliveries:
                injector.armed = True
                injector.reach_step("the worker has the message", "broker")
        except Killed:
            return []
        return deliveries

    async def ack(self, deliveries: Sequence[Delivery]) -> Any:
        return await self._settle("ack", lambda: self._inner.ack(deliveries), ["it was acked"] * len(deliveries))

    async def nack(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> Any:
        outcome = f"it goes back, to be delivered again in {delay:g} s"
        return await self._settle("nack", lambda: self._inner.nack(deliveries, delay), [outcome] * len(deliveries))

    async def dead_letter(self, delivery: Delivery, headers: Mapping[str, str]) -> Any:
        move = lambda: self._inner.dead_letter(delivery, headers)  # noqa: E731
        return await self._settle("dead letter", move, ["it became a dead letter"])

    async def _settle(self, name: str, settle: Callable[[], Any], outcomes: Sequence[str]) -> Any:
        injector = self._broker.injector
        try:
            injector.reach_step(f"{name}: sent to the broker", "broker")
            answer = await settle()
            self._broker.settled += outcomes
            injector.reach_step(f"{name}: done, and the reply is on its way", "broker")
        except Killed:
            raise BrokerUnavailable("the process was killed", 0.0) from None
        return answer

    async def close(self) -> None:
        if not self._broker.injector.killed:
            await self._inner.close()
