"""The figures that stores, workers and relays give at a scrape, and the metric families they become."""

from __future__ import annotations

import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from effectonce.contracts import Port
from effectonce.errors import StoreUnavailable
from effectonce.record import Stats
from effectonce.relay.relay import Relay
from effectonce.store import Store
from effectonce.worker.worker import Worker

from .attach import Watched
from .cached_probe import CachedProbe, query_store, run_in_loop

W = TypeVar("W", Store, Relay, Worker)

DEAD_LETTERS_TIMEOUT_S = 5.0
MAX_BATCH_BITS = 10  # batches of 2 ** 10 and more share the last bucket

#: Each gauge: its help, its labels, and how the values of two sources with the same labels are combined.
GAUGES: dict[str, tuple[str, tuple[str, ...], Literal["sum", "max"]]] = {
    "effectonce_up": ("Whether this answered the last query for its figures.", ("what",), "max"),
    "effectonce_records": ("Records by state, counted up to a cap.", ("store", "state"), "max"),
    "effectonce_in_doubt_oldest_seconds": ("The age of the oldest record in doubt.", ("store",), "max"),
    "effectonce_sweep_age_seconds": ("Since expired records were last swept, or watched if never.", ("store",), "max"),
    "effectonce_outbox_messages": ("Messages in the outbox by state, counted up to a cap.", ("store", "state"), "max"),
    "effectonce_outbox_oldest_seconds": ("The age of the oldest unpublished message.", ("store",), "max"),
    "effectonce_outbox_clean_age_seconds": ("Since published messages were last cleaned up.", ("store",), "max"),
    "effectonce_dead_letters": ("The dead letters of the queue.", ("queue", "worker"), "max"),
    "effectonce_in_hand": ("Messages received and not settled.", ("queue", "worker"), "sum"),
    "effectonce_running": ("Messages claimed and not ended.", ("queue", "worker"), "sum"),
    "effectonce_ready": ("Whether it consumes or relays, and is not stopping.", ("what",), "max"),
}

#: The name of a gauge in `GAUGES`, its value, and its labels.
Gauge = tuple[str, float, *tuple[str, ...]]


class Scrape:
    """The figures of all sources at one scrape. Those with the same name and labels are combined."""

    def __init__(self) -> None:
        self._gauges: dict[str, dict[tuple[str, ...], float]] = {name: {} for name in GAUGES}
        self.deliveries: Counter[tuple[str, ...]] = Counter()  # by queue, worker and outcome
        self._batch_sizes: dict[tuple[str, ...], Sequence[int]] = {}

    def add(self, name: str, value: float, *labels: str) -> None:
        values = self._gauges[name]
        before = values.get(labels, 0.0)
        values[labels] = before + value if GAUGES[name][2] == "sum" else max(before, value)

    def add_batches(self, sizes: Sequence[int], *labels: str) -> None:
        before = self._batch_sizes.get(labels) or [0] * len(sizes)
        self._batch_sizes[labels] = [total + size for total, size in zip(before, sizes, strict=True)]

    def families(self) -> Iterator[Any]:
        """Yield the metric families for prometheus_client."""
        for name, (text, label_names, _) in GAUGES.items():
            gauge = GaugeMetricFamily(name, text, labels=label_names)
            for labels, value in self._gauges[name].items():
                gauge.add_metric(labels, value)
            yield gauge
        text = "Messages received, and how they were settled."
        deliveries = CounterMetricFamily("effectonce_deliveries", text, labels=("queue", "worker", "outcome"))
        for labels, count in self.deliveries.items():
            deliveries.add_metric(labels, count)
        yield deliveries
        text = "Operations in one round trip to the store."
        batches = HistogramMetricFamily("effectonce_batch_size", text, labels=("store", "lane"))
        for labels, sizes in self._batch_sizes.items():
            batches.add_metric(labels, _buckets(sizes), sizes[0])
        yield batches


def _buckets(sizes: Sequence[int]) -> list[tuple[str, float]]:
    """Turn counts by the size's bit length into cumulative buckets. ``sizes[0]`` is the sum of all sizes."""
    buckets, count = [], 0
    for bits in range(1, len(sizes)):
        count += sizes[bits]
        if bits <= MAX_BATCH_BITS:
            buckets.append((str((1 << bits) - 1), float(count)))
    return [*buckets, ("+Inf", float(count))]


class MetricsSource:
    """The figures of one watched object, which is held weakly, so that watching does not keep it alive.

    ``query`` asks a server for gauges, at most every ten seconds. ``report_counts`` adds what the object itself counts.
    """

    def __init__(
        self,
        watched: W,
        probe_name: str,
        query: Callable[[W], list[Gauge]],
        report_counts: Callable[[W, Scrape], None],
    ) -> None:
        self._watched: weakref.ref[Any] = weakref.ref(watched)
        self._query: Callable[[Any], list[Gauge]] = query
        self._report_counts: Callable[[Any, Scrape], None] = report_counts
        self._probe = CachedProbe(probe_name, self._read)

    @property
    def probes(self) -> Sequence[CachedProbe[list[Gauge]]]:
        """The probe of the server; none for a worker that does not run, whose event loop would have to ask it."""
        watched = self._watched()
        if watched is None or (isinstance(watched, Worker) and watched.loop is None):
            return ()
        return (self._probe,)

    def _read(self) -> list[Gauge]:
        watched = self._watched()
        if watched is None:
            raise StoreUnavailable(
                f"{self._probe.what} was closed and can no longer be scraped; attach metrics to the new one"
            )
        return self._query(watched)

    def report(self, scrape: Scrape) -> None:
        for probe in self.probes:
            scrape.add("effectonce_up", float(probe.value is not None), probe.what)
            for gauge in probe.value or ():
                scrape.add(*gauge)
        watched = self._watched()
        if watched is not None:
            self._report_counts(watched, scrape)


def source_of(watched: Watched) -> MetricsSource:
    if isinstance(watched, Worker):
        return MetricsSource(watched, f"dead letters of {watched.name}", _query_dead_letters, _report_worker)
    if isinstance(watched, Relay):
        return MetricsSource(watched, f"outbox in {store_name(watched.store)}", _query_outbox, _report_relay)
    query = partial(_query_records, watched_since=time.monotonic())
    return MetricsSource(watched, store_name(watched), query, _report_batches)


def store_name(store: Store) -> str:
    """Return the store's address, without secrets."""
    return repr(store.runtime.backend)


def _query_records(store: Store, watched_since: float) -> list[Gauge]:
    async def query(port: Port) -> tuple[Stats, int]:
        return await port.stats(), await port.now()

    stats, now = query_store(store, query)
    name = store_name(store)
    gauges: list[Gauge] = [("effectonce_records", count, name, state) for state, count in stats.counts.items()]
    gauges.append(("effectonce_in_doubt_oldest_seconds", _age(stats.oldest_in_doubt, now), name))
    if stats.swept_at is not None:
        gauges.append(("effectonce_sweep_age_seconds", _age(stats.swept_at, now), name))
    elif any(stats.counts.values()):  # F37: the sweeper has never succeeded
        gauges.append(("effectonce_sweep_age_seconds", time.monotonic() - watched_since, name))
    return gauges


def _report_batches(store: Store, scrape: Scrape) -> None:
    for lane, sizes in store.runtime.batch_sizes():
        scrape.add_batches(sizes, store_name(store), lane)


def _query_outbox(relay: Relay) -> list[Gauge]:
    backlog, now = relay.stats(), query_store(relay.store, lambda port: port.now())
    name = store_name(relay.store)
    gauges: list[Gauge] = [
        ("effectonce_outbox_messages", backlog.counts.get(state, 0), name, state)
        for state in ("pending", "waiting", "parked", "published")
    ]
    gauges.append(("effectonce_outbox_oldest_seconds", _age(backlog.oldest, now), name))
    if backlog.cleaned_at is not None:
        gauges.append(("effectonce_outbox_clean_age_seconds", _age(backlog.cleaned_at, now), name))
    return gauges


def _report_relay(relay: Relay, scrape: Scrape) -> None:
    ready = relay.phase == "running" and relay.outage is None
    scrape.add("effectonce_ready", float(ready), f"relay from {store_name(relay.store)}")


def _query_dead_letters(worker: Worker) -> list[Gauge]:
    async def count() -> list[Gauge]:
        gauges: list[Gauge] = []
        for queue in worker.queues:
            dead_letters = worker.broker.backend.dead_letters(queue, group=worker.name)
            try:
                gauges.append(("effectonce_dead_letters", await dead_letters.count(), queue, worker.name))
            finally:
                await dead_letters.close()
        return gauges

    return run_in_loop(worker.loop, count, DEAD_LETTERS_TIMEOUT_S)


def _report_worker(worker: Worker, scrape: Scrape) -> None:
    scrape.add("effectonce_ready", float(worker.phase == "running"), f"worker {worker.name}")
    for consumer in worker.consumers:
        labels = (consumer.queue, worker.name)
        scrape.deliveries[*labels, "received"] += consumer.received
        for outcome, count in consumer.settler.settled.items():
            scrape.deliveries[*labels, outcome] += count
        scrape.add("effectonce_in_hand", len(consumer.in_flight), *labels)
        scrape.add("effectonce_running", sum(pool.taken for pool in consumer.executor.pools), *labels)


def _age(since: int | None, now: int) -> float:
    """Return the seconds since a time of the store; 0 for a thing that does not exist."""
    return 0.0 if since is None else max(0.0, (now - since) / 1e6)
