"""Opens the consumers of a worker: each with its reader, its prefetch and the executor of its mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .lease_executor import LeaseExecutor
from .quarantine import Quarantine, SuspectTurns
from .queue_consumer import Executor, QueueConsumer
from .transaction_executor import MAX_BATCH, TransactionExecutor
from .worker_run import WorkerRun

if TYPE_CHECKING:
    from .worker import Worker

MAX_PREFETCH = 1000
BROKER_PREFETCH_FACTOR = 1.5
"""Jobs that have run and wait for their ack still count at the broker, and no longer in the worker's own prefetch."""

MakeExecutor = Callable[[QueueConsumer], Executor]


def open_consumers(worker: Worker, run: WorkerRun) -> list[QueueConsumer]:
    """Open one consumer for each queue of ``worker``, on the event loop of ``run``. Nothing is received yet."""
    make_executor = _transaction_executors(worker, run) if worker.store is None else _lease_executors(worker, run)
    return [_open_consumer(worker, queue, make_executor, run) for queue in worker.queues]


def _lease_executors(worker: Worker, run: WorkerRun) -> MakeExecutor:
    """Executors under leases share a quarantine: a suspect runs alone in the whole worker."""
    store, quarantine = worker.store, Quarantine(run.loop)
    assert store is not None
    # Set before the first consumer is opened: `WorkerRun` closes what is here.
    batchers = run.batchers = store.runtime.open_batchers(run.fail)
    return lambda consumer: LeaseExecutor(
        consumer, worker.routes_of(consumer.queue), store, batchers, quarantine, worker.broker.apublish, run.fail
    )


def _transaction_executors(worker: Worker, run: WorkerRun) -> MakeExecutor:
    """Executors in transactions share the turns of their suspects: of all these, one runs at a time."""
    turns = SuspectTurns()
    return lambda consumer: TransactionExecutor(
        consumer, [worker.transaction_runners[route] for route in worker.routes_of(consumer.queue)], turns, run.fail
    )


def _open_consumer(worker: Worker, queue: str, make_executor: MakeExecutor, run: WorkerRun) -> QueueConsumer:
    capabilities = worker.broker.capabilities
    concurrency = sum(route.concurrency * (MAX_BATCH if route.batch else 1) for route in worker.routes_of(queue))
    prefetch = worker.prefetch or min(MAX_PREFETCH, 2 * concurrency)
    return QueueConsumer(
        queue,
        worker.name,
        worker.broker.backend.consumer(queue, group=worker.name, prefetch=int(prefetch * BROKER_PREFETCH_FACTOR)),
        worker.reader(queue),
        make_executor,
        prefetch=prefetch,
        max_receive=capabilities.batch,
        ack_window_s=capabilities.ack_window if capabilities.extends else None,
        broker_counts=capabilities.counts_attempts,
        unknown=worker.unknown,
        fail=run.fail,
        events=worker.events,
        tracer=worker.tracer,
    )
