"""Doctor on brokers and programs: whether records outlive redeliveries, and what lies in the dead letters."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence

from effectonce.broker import Broker
from effectonce.dead_letters.queue import DeadLetterDetails, DeadLetterQueue
from effectonce.errors import ConfigurationError, EffectOnceError, show
from effectonce.intents.intents import Intents
from effectonce.store import DEFAULT_RETENTION, Store, require_there
from effectonce.values.durations import micros
from effectonce.worker.startup_checks import check_spans, fit_lease
from effectonce.worker.worker import Worker

from .findings import Finding, Limits, refusal, span
from .records import shortest_retention

_DEFAULT = micros(DEFAULT_RETENTION) / 1e6


def examine_worker(worker: Worker, limits: Limits) -> Iterator[Finding]:
    """The start-up checks of ``worker``, none of which waits for what is away; and its dead letters."""
    try:
        capabilities = worker.broker.capabilities
    except ConfigurationError as error:
        yield refusal(error, f"worker {worker.name}")
        return
    for route in worker.routes:
        about = f"worker {worker.name}, {route.name}"
        try:
            fit_lease(route, capabilities)
            check_spans(route, capabilities, worker.redrive_within)
        except EffectOnceError as error:
            yield refusal(error, about)
        if (runner := worker.transaction_runner(route)) is not None:
            try:
                asyncio.run(runner.check())
            except EffectOnceError as error:
                yield refusal(error, about)
    for queue in worker.queues:
        kept = min(route.policy.retention for route in worker.routes if route.queue == queue) / 1e6
        yield from _queue(worker.broker, worker, queue, worker.name, kept, limits)


def examine_broker(
    broker: Broker, store: Store | None, queues: Sequence[str], group: str, limits: Limits
) -> Iterator[Finding]:
    """F25, where no worker says what its retention is: the records themselves do."""
    try:
        about, horizon = repr(broker.backend), broker.capabilities.redelivery_horizon
    except ConfigurationError as error:
        yield refusal(error, "broker")
        return
    try:
        scope, kept = (None if store is None else shortest_retention(store)) or ("", _DEFAULT)
    except EffectOnceError:  # said already, of the store
        scope, kept = "", _DEFAULT
    if horizon is not None and kept < horizon:
        whose = f"records of scope {show(scope)!r} are" if scope else "records are, by default,"
        yield Finding(
            code="retention",
            severity="error",
            about=about,
            what=f"{whose} kept for {span(kept)}, and {broker.capabilities.name} may deliver again after "
            f"{span(horizon)}",
            why="A duplicate that comes after its record is gone runs again.",
            run=f"set retention= to more than {span(horizon)}, with time for retries and redrives",
        )
    for queue in queues:
        yield from _queue(broker, broker, queue, group, kept, limits)


def _queue(
    broker: Broker, source: Worker | Broker, queue: str, group: str, kept: float, limits: Limits
) -> Iterator[Finding]:
    about = f"{broker.backend!r} {queue}"
    try:
        require_there(broker.backend, "start what uses it")
        broker.check(queue, group=group)
        letters = DeadLetterQueue(source, queue, group=group)
        oldest = next(iter(letters.list(limit=1)), None)
        if oldest is not None:
            yield _dead_letters(oldest, letters.count(), about, kept, limits)
    except EffectOnceError as error:
        yield refusal(error, about)


def _dead_letters(oldest: DeadLetterDetails, count: int, about: str, kept: float, limits: Limits) -> Finding:
    age = time.time() - oldest.cause.last if oldest.cause.last else 0.0
    outlived = age > kept
    since = f", the oldest for {span(age)}" if age else ""
    why = "Each is a message whose effect did not happen, or not wholly."
    if outlived:
        why = "The records of the oldest are gone: redriven, it runs again from the start, whatever it had done."
    return Finding(
        code="dead-letters",
        severity="error" if outlived else "warning" if age > limits.unattended else "note",
        about=about,
        what=f"dead letters: {count:,}{since}",
        why=why,
        run="effectonce dlq list MODULE:WORKER QUEUE; then: effectonce dlq redrive --dry-run",
    )


def examine_intents(intents: Intents, broker: Broker | None) -> Iterator[Finding]:
    """F25 for outside calls: a provider's key window against the time in which a message may come again."""
    horizon = None if broker is None else broker.capabilities.redelivery_horizon
    if horizon is not None:
        try:
            intents.check(horizon)
        except EffectOnceError as error:
            yield refusal(error, "intents")
