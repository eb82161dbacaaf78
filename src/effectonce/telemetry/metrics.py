"""The figures that stores, workers and relays give at a scrape, and the metric families they become."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, Literal, Protocol, TypeVar

from msgspec import Struct
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from effectonce.contracts import Port
from effectonce.contracts.outbox import OutboxBacklog
from effectonce.errors import StoreUnavailable
from effectonce.record import Stats
from effectonce.relay.relay import Relay
from effectonce.store import Store
from effectonce.worker.worker import Worker

from .attach import Watched
from .cached_probe import CachedProbe, query_store, run_in_loop

T = TypeVar("T")

DEAD_LETTERS_TIMEOUT_S = 5.0
MAX_BATCH_BITS = 10  # batches of 2 ** 10 and more share the last bucket

#: Each gauge: its help, its labels, and how the values of two sources with the same labels are combined.
GAUGES: dict[str, tuple[str, tuple[str, ...], Literal["sum", "max"]]] = {
    "effectonce_up": ("Whether this answered when it was last asked for its figures.", ("what",), "max"),
    "effectonce_records": ("Records by state, counted up to a cap.", ("store", "state"), "max"),
    "effectonce_in_doubt_oldest_seconds": ("The age of the oldest record in doubt.", ("store",), "max"),
    "effectonce_sweep_age_seconds": ("Since expired records were last swept, or watched if never.", ("store",), "max"),
    "effectonce_outbox_messages": ("Messages in the outbox by state, counted up to a cap.", ("store", "state"), "max"),
    "effectonce_outbox_oldest_seconds": ("The age of the oldest message that has not left.", ("store",), "max"),
    "effectonce_outbox_clean_age_seconds": ("Since published messages were last cleaned up.", ("store",), "max"),
    "effectonce_dead_letters": ("Messages that were given up.", ("queue", "worker"), "max"),
    "effectonce_in_hand": ("Messages received and not settled.", ("queue", "worker"), "sum"),
    "effectonce_running": ("Messages claimed and not ended.", ("queue", "worker"), "sum"),
    "effectonce_ready": ("Whether it consumes, or relays, and is not stopping.", ("what",), "max"),
}
DELIVERIES = "effectonce_deliveries"
BATCHES = "effectonce_batch_size"


class Families:
    """Collects the figures of all sources at a scrape. Figures with the same name and labels are combined."""

    def __init__(self) -> None:
        self._gauges: dict[str, dict[tuple[str, ...], float]] = {name: {} for name in GAUGES}
        self._deliveries: dict[tuple[str, ...], int] = {}
        self._batches: dict[tuple[str, ...], list[int]] = {}

    def add_gauge(self, name: str, value: float, *labels: str) -> None:
        values = self._gauges[name]
        before = values.get(labels, 0.0)
        values[labels] = before + value if GAUGES[name][2] == "sum" else max(before, value)

    def add_deliveries(self, count: int, *labels: str) -> None:
        self._deliveries[labels] = self._deliveries.get(labels, 0) + count

    def add_batches(self, sizes: Sequence[int], *labels: str) -> None:
        before = self._batches.get(labels) or [0] * len(sizes)
        self._batches[labels] = [total + size for total, size in zip(before, sizes, strict=True)]

    def collect(self) -> Iterator[Any]:
        """Yield the metric families for prometheus_client."""
        for name, (text, labels, _) in GAUGES.items():
            gauge = GaugeMetricFamily(name, text, labels=labels)
            for values, value in self._gauges[name].items():
                gauge.add_metric(values, value)
            yield gauge
        deliveries = CounterMetricFamily(
            DELIVERIES,
            "Messages received, and what the broker was told of them.",
            labels=("queue", "worker", "outcome"),
        )
        for values, count in self._deliveries.items():
            deliveries.add_metric(values, count)
        yield deliveries
        batches = HistogramMetricFamily(BATCHES, "Operations in one round trip to the store.", labels=("store", "lane"))
        for values, sizes in self._batches.items():
            batches.add_metric(values, _buckets(sizes), sizes[0])
        yield batches


def _buckets(sizes: Sequence[int]) -> list[tuple[str, float]]:
    """Turn counts by the size's bit length into cumulative buckets. ``sizes[0]`` is the sum of all sizes."""
    buckets, count = [], 0
    for bits in range(1, len(sizes)):
        count += sizes[bits]
        if bits <= MAX_BATCH_BITS:
            buckets.append((str((1 << bits) - 1), float(count)))
    return [*buckets, ("+Inf", float(count))]


class MetricsSource(Protocol):
    """Reports the figures of one watched object. It holds that weakly, so that watching does not keep it alive."""

    @property
    def probes(self) -> Sequence[CachedProbe[Any]]: ...

    def report(self, families: Families) -> None: ...


def source_of(watched: Watched) -> MetricsSource:
    if isinstance(watched, Worker):
        return _WorkerSource(watched)
    if isinstance(watched, Relay):
        return _RelaySource(watched)
    return _StoreSource(watched)


def _report_up(probes: Sequence[CachedProbe[Any]], families: Families) -> None:
    for probe in probes:
        families.add_gauge("effectonce_up", float(probe.value is not None), probe.what)


class _TimedFigures(Struct):
    """Figures that hold times, and the current time of the same clock."""

    figures: Any
    now: int

    def age(self, since: int | None) -> float | None:
        return None if since is None else max(0.0, (self.now - since) / 1e6)


class _StoreSource:
    def __init__(self, store: Store) -> None:
        self._store = weakref.ref(store)
        self._name = store_name(store)
        self._watched_since = time.monotonic()
        self._stats: CachedProbe[_TimedFigures] = CachedProbe(self._name, self._read)
        self.probes = (self._stats,)

    def _read(self) -> _TimedFigures:
        async def query(port: Port) -> _TimedFigures:
            return _TimedFigures(await port.stats(), await port.now())

        return query_store(_dereference(self._store, self._name), query)

    def report(self, families: Families) -> None:
        _report_up(self.probes, families)
        store = self._store()
        if store is None:
            return
        timed = self._stats.value
        if timed is not None:
            stats: Stats = timed.figures
            for state, count in stats.counts.items():
                families.add_gauge("effectonce_records", count, self._name, state)
            _add_age(
                families, "effectonce_in_doubt_oldest_seconds", timed.age(stats.oldest_in_doubt) or 0.0, self._name
            )
            swept = timed.age(stats.swept_at)
            if swept is None and any(stats.counts.values()):  # F37: the sweeper has never succeeded
                swept = time.monotonic() - self._watched_since
            _add_age(families, "effectonce_sweep_age_seconds", swept, self._name)
        for lane, sizes in store.runtime.batch_sizes():
            families.add_batches(sizes, self._name, lane)


class _RelaySource:
    def __init__(self, relay: Relay) -> None:
        self._relay = weakref.ref(relay)
        self._name = store_name(relay.store)
        self._backlog: CachedProbe[_TimedFigures] = CachedProbe(f"outbox in {self._name}", self._read)
        self.probes = (self._backlog,)

    def _read(self) -> _TimedFigures:
        relay = _dereference(self._relay, self._name)
        return _TimedFigures(relay.stats(), query_store(relay.store, lambda port: port.now()))

    def report(self, families: Families) -> None:
        _report_up(self.probes, families)
        relay, timed = self._relay(), self._backlog.value
        if relay is not None:
            ready = relay.phase == "running" and relay.outage is None
            families.add_gauge("effectonce_ready", float(ready), f"relay from {self._name}")
        if timed is not None:
            backlog: OutboxBacklog = timed.figures
            for state in ("pending", "waiting", "parked", "published"):
                families.add_gauge("effectonce_outbox_messages", backlog.counts.get(state, 0), self._name, state)
            _add_age(families, "effectonce_outbox_oldest_seconds", timed.age(backlog.oldest) or 0.0, self._name)
            _add_age(families, "effectonce_outbox_clean_age_seconds", timed.age(backlog.cleaned_at), self._name)


class _WorkerSource:
    def __init__(self, worker: Worker) -> None:
        self._worker = weakref.ref(worker)
        self._dead_letter_counts: CachedProbe[dict[str, int]] = CachedProbe(
            f"dead letters of {worker.name}", self._read
        )

    @property
    def probes(self) -> Sequence[CachedProbe[Any]]:
        worker = self._worker()
        return (self._dead_letter_counts,) if worker is not None and worker.loop is not None else ()

    def _read(self) -> dict[str, int]:
        worker = _dereference(self._worker, "the worker")
        return run_in_loop(worker.loop, lambda: _count_dead_letters(worker), DEAD_LETTERS_TIMEOUT_S)

    def report(self, families: Families) -> None:
        _report_up(self.probes, families)
        worker = self._worker()
        if worker is None:
            return
        families.add_gauge("effectonce_ready", float(worker.phase == "running"), f"worker {worker.name}")
        for queue, count in (self._dead_letter_counts.value or {}).items() if self.probes else ():
            families.add_gauge("effectonce_dead_letters", count, queue, worker.name)
        for consumer in worker.consumers:
            labels = (consumer.queue, worker.name)
            families.add_deliveries(consumer.received, *labels, "received")
            for outcome, count in consumer.settler.settled.items():
                families.add_deliveries(count, *labels, outcome)
            families.add_gauge("effectonce_in_hand", len(consumer.in_flight), *labels)
            families.add_gauge("effectonce_running", sum(pool.taken for pool in consumer.executor.pools), *labels)


async def _count_dead_letters(worker: Worker) -> dict[str, int]:
    counts = {}
    for queue in worker.queues:
        dead_letters = worker.broker.backend.dead_letters(queue, group=worker.name)
        try:
            counts[queue] = await dead_letters.count()
        finally:
            await dead_letters.close()
    return counts


def store_name(store: Store) -> str:
    """Return the store's address, without secrets."""
    return repr(store.runtime.backend)


def _add_age(families: Families, name: str, age: float | None, *labels: str) -> None:
    if age is not None:
        families.add_gauge(name, age, *labels)


def _dereference(reference: weakref.ref[T], name: str) -> T:
    watched = reference()
    if watched is None:
        raise StoreUnavailable(f"{name} was closed and can no longer be scraped; attach metrics to the new one")
    return watched
