"""Doctor's checks of brokers, and of the workers and intents that use them: do records outlive redeliveries? are there
dead letters?"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

from effectonce.broker import Broker
from effectonce.contracts import FlushesLater
from effectonce.core.shared_loop import shared_loop
from effectonce.dead_letters.queue import DeadLetterQueue
from effectonce.errors import EffectOnceError, show
from effectonce.intents.intents import Intents
from effectonce.store import DEFAULT_RETENTION, Store, require_existing
from effectonce.values.durations import micros, span_text
from effectonce.worker.startup_checks import check_key, check_spans, fit_lease
from effectonce.worker.worker import Worker

from .advice import DoctorSeverity
from .findings import Examination, Limits, format_seconds, format_setting
from .store_checks import shortest_retention

_DEFAULT_RETENTION_S = micros(DEFAULT_RETENTION) / 1e6
_RECORD_IS_GONE = (
    "The record of the oldest is gone: redriven, it runs again from the start, even if its effect happened."
)


def examine_worker(examination: Examination, worker: Worker, limits: Limits) -> None:
    """Run the start-up checks of ``worker``, without waiting for servers that are away, and count its dead letters."""
    _examine_service(examination, worker.broker)
    for route in worker.routes:
        about = f"worker {worker.name}, {route.name}"
        with examination.check(about, "lease and retention") as check:
            capabilities = worker.broker.capabilities
            check_key(route, capabilities)
            fit_lease(route, capabilities)
            check_spans(route, capabilities, worker.redrive_within_s)
            check.saw = (
                f"lease {span_text(route.policy.lease_us)}, records kept for {span_text(route.policy.retention_us)}"
            )
        if (runner := worker.transaction_runners.get(route)) is not None:
            with examination.check(about, "database of its transactions") as check:
                shared_loop.run(runner.check())
                check.saw = "it answers, its tables fit this release, and its settings keep the promise"
    for queue in worker.queues:
        retention = min(route.policy.retention_us for route in worker.routes if route.queue == queue) / 1e6
        _examine_queue(examination, worker, queue, worker.name, retention, limits)


def examine_broker(
    examination: Examination, broker: Broker, store: Store | None, queues: Sequence[str], group: str, limits: Limits
) -> None:
    """Check F25 (a record expires before its message is redelivered) by the retention that the records show."""
    _examine_service(examination, broker)
    scope, retention = "", _DEFAULT_RETENTION_S
    with examination.check("broker", "retention") as check:
        check.about, horizon = repr(broker.backend), broker.capabilities.redelivery_horizon_s
        with suppress(EffectOnceError):  # `examine_store` has reported it
            scope, retention = (None if store is None else shortest_retention(store)) or (scope, retention)
        kept = f"records are kept for {format_setting(retention)}"
        if horizon is None:
            check.saw = f"{kept}; {broker.capabilities.name} sets no limit for redeliveries"
        elif retention < horizon:
            whose = f"records of scope {show(scope)!r} are" if scope else "records are, by default,"
            again = f"{broker.capabilities.name} may deliver again after {format_setting(horizon)}"
            what = f"{whose} kept for {format_setting(retention)}, and {again}"
            check.add("retention", what, horizon=format_setting(horizon))
        else:
            check.saw = f"{kept}; {broker.capabilities.name} redelivers for {format_setting(horizon)} at most"
    for queue in queues:
        _examine_queue(examination, broker, queue, group, retention, limits)
    if not queues:
        examination.skip(check.about, "dead letters", "no queue was named")


def _examine_service(examination: Examination, broker: Broker) -> None:
    """Check what is true of the broker whichever queue is used."""
    backend, name = broker.backend, broker.capabilities.name
    if broker.capabilities.experimental:
        with examination.check(repr(backend), "experience with it") as check:
            check.add("experimental", f"{name} is experimental: it has never run against the service itself")
    if isinstance(backend, FlushesLater):
        with examination.check(repr(backend), "confirmed messages on disk") as check:
            interval = shared_loop.run(backend.sync_interval())
            if interval is None:
                check.add("sync-interval", f"{name} writes messages to disk up to two minutes after it confirmed them")
            elif interval > 0:
                after = format_seconds(interval)
                check.add("sync-interval", f"{name} writes messages to disk up to {after} after it confirmed them")
            else:
                check.saw = "they are on disk before they are confirmed"


def _examine_queue(
    examination: Examination, source: Worker | Broker, queue: str, group: str, retention: float, limits: Limits
) -> None:
    broker = source.broker if isinstance(source, Worker) else source
    with examination.check(f"queue {queue}", "dead letters") as check:
        check.about = f"{broker.backend!r} {queue}"
        require_existing(broker.backend, "start what uses it")
        broker.check(queue, group=group)
        dead_letters = DeadLetterQueue(source, queue, group=group)
        check.saw = "none"
        for oldest in dead_letters.list(limit=1):
            age = time.time() - oldest.cause.given_up_at if oldest.cause.given_up_at else 0.0
            since = f", the oldest for {format_seconds(age)}" if age else ""
            what = f"dead letters: {dead_letters.count():,}{since}"
            severity: DoctorSeverity = "warning" if age > limits.unattended else "note"
            if age > retention:
                check.add("dead-letters", what, severity="error", why=_RECORD_IS_GONE)
            else:
                check.add("dead-letters", what, severity=severity)


def examine_intents(examination: Examination, intents: Intents, broker: Broker | None) -> None:
    """Check F25 for outside calls: a provider must remember keys for as long as a message may be redelivered."""
    about = f"intents {intents.scope}"
    horizon = None if broker is None else broker.capabilities.redelivery_horizon_s
    if horizon is None:
        examination.skip(about, "key windows", "no broker is given that limits its redeliveries")
        return
    with examination.check(about, "key windows") as check:
        intents.check(horizon)
        check.saw = f"providers remember keys for longer than redeliveries last ({format_setting(horizon)})"
