"""Doctor's checks of brokers and programs: whether records outlive redeliveries, and dead letters."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence

from effectonce.broker import Broker
from effectonce.dead_letters.queue import DeadLetterDetails, DeadLetterQueue
from effectonce.errors import ConfigurationError, EffectOnceError, show
from effectonce.intents.intents import Intents
from effectonce.store import DEFAULT_RETENTION, Store, require_existing
from effectonce.values.durations import micros
from effectonce.worker.startup_checks import check_spans, fit_lease
from effectonce.worker.worker import Worker

from .findings import Finding, Limits, Severity, finding_from, format_span
from .records import shortest_retention

_DEFAULT_RETENTION_S = micros(DEFAULT_RETENTION) / 1e6


def examine_worker(worker: Worker, limits: Limits) -> Iterator[Finding]:
    """Run the start-up checks of ``worker``, without waiting for servers that are away, and count its dead letters."""
    try:
        capabilities = worker.broker.capabilities
    except ConfigurationError as error:
        yield finding_from(error, f"worker {worker.name}")
        return
    for route in worker.routes:
        about = f"worker {worker.name}, {route.name}"
        try:
            fit_lease(route, capabilities)
            check_spans(route, capabilities, worker.redrive_within)
        except EffectOnceError as error:
            yield finding_from(error, about)
        if (runner := worker.transaction_runner(route)) is not None:
            try:
                asyncio.run(runner.check())
            except EffectOnceError as error:
                yield finding_from(error, about)
    for queue in worker.queues:
        retention = min(route.policy.retention for route in worker.routes if route.queue == queue) / 1e6
        yield from _examine_queue(worker.broker, worker, queue, worker.name, retention, limits)


def examine_broker(
    broker: Broker, store: Store | None, queues: Sequence[str], group: str, limits: Limits
) -> Iterator[Finding]:
    """Check F25 (a record expires before its message is redelivered) by the retention that the records show."""
    try:
        about, horizon = repr(broker.backend), broker.capabilities.redelivery_horizon
    except ConfigurationError as error:
        yield finding_from(error, "broker")
        return
    try:
        scope, retention = (None if store is None else shortest_retention(store)) or ("", _DEFAULT_RETENTION_S)
    except EffectOnceError:  # `examine_store` has reported it
        scope, retention = "", _DEFAULT_RETENTION_S
    if horizon is not None and retention < horizon:
        whose = f"records of scope {show(scope)!r} are" if scope else "records are, by default,"
        yield Finding(
            code="retention",
            severity="error",
            about=about,
            what=f"{whose} kept for {format_span(retention)}, and {broker.capabilities.name} may deliver again after "
            f"{format_span(horizon)}",
            why="A duplicate that comes after its record is gone runs again.",
            run=f"set retention= to more than {format_span(horizon)}, with time for retries and redrives",
        )
    for queue in queues:
        yield from _examine_queue(broker, broker, queue, group, retention, limits)


def _examine_queue(
    broker: Broker, source: Worker | Broker, queue: str, group: str, retention: float, limits: Limits
) -> Iterator[Finding]:
    about = f"{broker.backend!r} {queue}"
    try:
        require_existing(broker.backend, "start what uses it")
        broker.check(queue, group=group)
        dead_letters = DeadLetterQueue(source, queue, group=group)
        oldest = next(iter(dead_letters.list(limit=1)), None)
        if oldest is not None:
            yield _dead_letters_finding(oldest, dead_letters.count(), about, retention, limits)
    except EffectOnceError as error:
        yield finding_from(error, about)


def _dead_letters_finding(
    oldest: DeadLetterDetails, count: int, about: str, retention: float, limits: Limits
) -> Finding:
    age = time.time() - oldest.cause.last if oldest.cause.last else 0.0
    since = f", the oldest for {format_span(age)}" if age else ""
    severity: Severity = "warning" if age > limits.unattended else "note"
    why = "Each is a message whose effect did not happen, or only in part."
    if age > retention:
        severity = "error"
        why = "The record of the oldest is gone: redriven, it runs again from the start, even if its effect happened."
    return Finding(
        code="dead-letters",
        severity=severity,
        about=about,
        what=f"dead letters: {count:,}{since}",
        why=why,
        run="effectonce dlq list MODULE:WORKER QUEUE; then: effectonce dlq redrive --dry-run",
    )


def examine_intents(intents: Intents, broker: Broker | None) -> Iterator[Finding]:
    """Check F25 for outside calls: a provider must remember keys for as long as a message may be redelivered."""
    horizon = None if broker is None else broker.capabilities.redelivery_horizon
    if horizon is not None:
        try:
            intents.check(horizon)
        except EffectOnceError as error:
            yield finding_from(error, "intents")
