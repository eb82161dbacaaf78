"""Opens the consumers of a worker: each with its reader, its prefetch and the executor of its mode.

Here the parts of a run meet: what all consumers share (batchers, quarantine, turns), and what each has for itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .executor import Executor
from .lease_executor import LeaseExecutor
from .quarantine import Quarantine, SuspectTurns
from .queue_consumer import QueueConsumer
from .transaction_executor import MAX_BATCH, TransactionExecutor
from .worker_run import WorkerRun

if TYPE_CHECKING:
    from .worker import Worker

MAX_PREFETCH = 1000
BROKER_PREFETCH_FACTOR = 1.5
"""Jobs that have run and wait for their ack still count at the broker, and no longer in the worker's own prefetch."""


def open_consumers(worker: Worker, run: WorkerRun) -> list[QueueConsumer]:
    """Open one consumer for each queue of ``worker``, on the event loop of ``run``. Nothing is received yet."""
    store, quarantine, turns = worker.store, Quarantine(run.loop), SuspectTurns()  # suspects are apart in all queues
    if store is not None:  # before the first consumer is opened: `WorkerRun` closes what is here
        run.batchers = store.runtime.open_batchers(run.fail)

    def make_executor(consumer: QueueConsumer) -> Executor:
        routes = worker.routes_of(consumer.queue)
        if store is None:
            return TransactionExecutor(consumer, [worker.transaction_runners[r] for r in routes], turns, run.fail)
        assert run.batchers is not None
        return LeaseExecutor(consumer, routes, store, run.batchers, quarantine, worker.broker.apublish, run.fail)

    return [_open_consumer(worker, queue, make_executor, run) for queue in worker.queues]


def _open_consumer(
    worker: Worker, queue: str, make_executor: Callable[[QueueConsumer], Executor], run: WorkerRun
) -> QueueConsumer:
    concurrency = sum(route.concurrency * (MAX_BATCH if route.batch else 1) for route in worker.routes_of(queue))
    prefetch = worker.prefetch or min(MAX_PREFETCH, 2 * concurrency)
    return QueueConsumer(
        queue,
        worker.name,
        worker.broker.backend.consumer(queue, group=worker.name, prefetch=int(prefetch * BROKER_PREFETCH_FACTOR)),
        worker.reader(queue),
        make_executor,
        prefetch=prefetch,
        capabilities=worker.broker.capabilities,
        unknown=worker.unknown,
        private=worker.store is not None and worker.store.private,
        fail=run.fail,
        events=worker.events,
        tracer=worker.tracer,
    )
