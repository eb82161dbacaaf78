"""Doctor's checks of brokers, and of the workers and intents that use them: do records outlive redeliveries? are there
dead letters?"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from effectonce.broker import Broker
from effectonce.dead_letters.queue import DeadLetterQueue
from effectonce.errors import EffectOnceError, show
from effectonce.intents.intents import Intents
from effectonce.store import DEFAULT_RETENTION, Store, require_existing
from effectonce.values.durations import micros
from effectonce.worker.startup_checks import check_spans, fit_lease
from effectonce.worker.worker import Worker

from .advice import DoctorSeverity
from .findings import Findings, Limits, format_span
from .store_checks import shortest_retention

_DEFAULT_RETENTION_S = micros(DEFAULT_RETENTION) / 1e6
_RECORD_IS_GONE = (
    "The record of the oldest is gone: redriven, it runs again from the start, even if its effect happened."
)


def examine_worker(findings: Findings, worker: Worker, limits: Limits) -> None:
    """Run the start-up checks of ``worker``, without waiting for servers that are away, and count its dead letters."""
    with findings.catch(f"worker {worker.name}"):
        capabilities = worker.broker.capabilities
        for route in worker.routes:
            about = f"worker {worker.name}, {route.name}"
            with findings.catch(about):
                fit_lease(route, capabilities)
                check_spans(route, capabilities, worker.redrive_within_s)
            with findings.catch(about):
                if (runner := worker.transaction_runners.get(route)) is not None:
                    asyncio.run(runner.check())
        for queue in worker.queues:
            retention = min(route.policy.retention_us for route in worker.routes if route.queue == queue) / 1e6
            _examine_queue(findings, worker, queue, worker.name, retention, limits)


def examine_broker(
    findings: Findings, broker: Broker, store: Store | None, queues: Sequence[str], group: str, limits: Limits
) -> None:
    """Check F25 (a record expires before its message is redelivered) by the retention that the records show."""
    with findings.catch("broker"):
        about, horizon = repr(broker.backend), broker.capabilities.redelivery_horizon
        try:
            scope, retention = (None if store is None else shortest_retention(store)) or ("", _DEFAULT_RETENTION_S)
        except EffectOnceError:  # `examine_store` has reported it
            scope, retention = "", _DEFAULT_RETENTION_S
        if horizon is not None and retention < horizon:
            whose = f"records of scope {show(scope)!r} are" if scope else "records are, by default,"
            again = f"{broker.capabilities.name} may deliver again after {format_span(horizon)}"
            what = f"{whose} kept for {format_span(retention)}, and {again}"
            findings.add("retention", about, what, horizon=format_span(horizon))
        for queue in queues:
            _examine_queue(findings, broker, queue, group, retention, limits)


def _examine_queue(
    findings: Findings, source: Worker | Broker, queue: str, group: str, retention: float, limits: Limits
) -> None:
    broker = source.broker if isinstance(source, Worker) else source
    about = f"{broker.backend!r} {queue}"
    with findings.catch(about):
        require_existing(broker.backend, "start what uses it")
        broker.check(queue, group=group)
        dead_letters = DeadLetterQueue(source, queue, group=group)
        for oldest in dead_letters.list(limit=1):
            age = time.time() - oldest.cause.last if oldest.cause.last else 0.0
            what = f"dead letters: {dead_letters.count():,}" + (f", the oldest for {format_span(age)}" if age else "")
            severity: DoctorSeverity = "warning" if age > limits.unattended else "note"
            if age > retention:
                findings.add("dead-letters", about, what, severity="error", why=_RECORD_IS_GONE)
            else:
                findings.add("dead-letters", about, what, severity=severity)


def examine_intents(findings: Findings, intents: Intents, broker: Broker | None) -> None:
    """Check F25 for outside calls: a provider must remember keys for as long as a message may be redelivered."""
    horizon = None if broker is None else broker.capabilities.redelivery_horizon
    if horizon is not None:
        with findings.catch("intents"):
            intents.check(horizon)
