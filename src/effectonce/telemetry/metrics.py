"""Gauges of stores, workers and relays: where their values come from at a scrape, and how they are combined."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from effectonce.contracts import Port
from effectonce.core.group_commit.batches import BatchSizes
from effectonce.errors import StoreUnavailable
from effectonce.record import Stats
from effectonce.relay.relay import Relay
from effectonce.store import Store
from effectonce.worker.worker import Worker

from .cached_probe import CachedProbe, query_store, run_in_loop

W = TypeVar("W", Store, Relay, Worker)

DEAD_LETTERS_TIMEOUT_S = 5.0
MAX_BATCH_SIZE_BITS = 10  # batches of 2 ** 10 and more share the last bucket


class GaugeType(NamedTuple):
    help: str
    label_names: tuple[str, ...]
    combine: Literal["sum", "max"]  # how to combine two values with the same labels


GAUGES: dict[str, GaugeType] = {
    "effectonce_up": GaugeType("Whether this answered the last query for its figures.", ("what",), "max"),
    "effectonce_records": GaugeType("Records by state, counted up to a cap.", ("store", "state"), "max"),
    "effectonce_in_doubt_oldest_seconds": GaugeType("The age of the oldest record in doubt.", ("store",), "max"),
    "effectonce_sweep_age_seconds": GaugeType(
        "Since expired records were last swept, or watched if never.", ("store",), "max"
    ),
    "effectonce_outbox_messages": GaugeType(
        "Messages in the outbox by state, counted up to a cap.", ("store", "state"), "max"
    ),
    "effectonce_outbox_oldest_seconds": GaugeType("The age of the oldest unpublished message.", ("store",), "max"),
    "effectonce_outbox_clean_age_seconds": GaugeType(
        "Since published messages were last cleaned up.", ("store",), "max"
    ),
    "effectonce_dead_letters": GaugeType("The dead letters of the queue.", ("queue", "worker"), "max"),
    "effectonce_in_hand": GaugeType("Messages received and not settled.", ("queue", "worker"), "sum"),
    "effectonce_running": GaugeType("Messages claimed and not ended.", ("queue", "worker"), "sum"),
    "effectonce_ready": GaugeType("Whether it consumes or relays, and is not stopping.", ("what",), "max"),
}


class GaugeValue:
    """A value of the gauge called ``name`` in `GAUGES`, with its labels."""

    def __init__(self, name: str, value: float, *labels: str) -> None:
        self.name = name
        self.value = value
        self.labels = labels


class Scrape:
    """The metrics of all sources at one scrape. Values with the same name and labels are combined."""

    def __init__(self) -> None:
        self._gauges: dict[str, dict[tuple[str, ...], float]] = {name: {} for name in GAUGES}
        self.deliveries: Counter[tuple[str, ...]] = Counter()  # by queue, worker and outcome
        self._batch_sizes: dict[tuple[str, ...], BatchSizes] = {}  # by store and kind

    def add_gauge(self, name: str, value: float, *labels: str) -> None:
        values = self._gauges[name]
        before = values.get(labels, 0.0)
        values[labels] = before + value if GAUGES[name].combine == "sum" else max(before, value)

    def add_batch_sizes(self, sizes: BatchSizes, *labels: str) -> None:
        before = self._batch_sizes.get(labels, BatchSizes())
        batches = [total + count for total, count in zip(before.batches, sizes.batches, strict=True)]
        self._batch_sizes[labels] = BatchSizes(before.operations + sizes.operations, batches)

    def families(self) -> Iterator[Any]:
        """Yield the metric families for prometheus_client."""
        for name, kind in GAUGES.items():
            gauge = GaugeMetricFamily(name, kind.help, labels=kind.label_names)
            for labels, value in self._gauges[name].items():
                gauge.add_metric(labels, value)
            yield gauge
        text = "Messages received, and how they were settled."
        deliveries = CounterMetricFamily("effectonce_deliveries", text, labels=("queue", "worker", "outcome"))
        for labels, count in self.deliveries.items():
            deliveries.add_metric(labels, count)
        yield deliveries
        text = "Operations in one round trip to the store."
        batches = HistogramMetricFamily("effectonce_batch_size", text, labels=("store", "kind"))
        for labels, sizes in self._batch_sizes.items():
            batches.add_metric(labels, _batch_size_buckets(sizes.batches), sizes.operations)
        yield batches


def _batch_size_buckets(batches: Sequence[int]) -> list[tuple[str, float]]:
    """Return the cumulative buckets for `BatchSizes.batches`. A size of n bits is 2 ** n - 1 at most."""
    buckets, count = [], 0
    for bits in range(1, len(batches)):
        count += batches[bits]
        if bits <= MAX_BATCH_SIZE_BITS:
            buckets.append((str((1 << bits) - 1), float(count)))
    return [*buckets, ("+Inf", float(count))]


class MetricsSource:
    """The metrics of one watched object. It is held weakly: watching must not keep it alive.

    ``query`` asks a server for the values of gauges, at most every ten seconds. ``report_counts`` adds what the object
    itself counts, at every scrape.
    """

    def __init__(
        self,
        watched: W,
        probe_name: str,
        query: Callable[[W], list[GaugeValue]],
        report_counts: Callable[[W, Scrape], None],
    ) -> None:
        self._watched: weakref.ref[Any] = weakref.ref(watched)
        self._query: Callable[[Any], list[GaugeValue]] = query
        self._report_counts: Callable[[Any, Scrape], None] = report_counts
        self._probe = CachedProbe(probe_name, self._read)

    @property
    def probes(self) -> Sequence[CachedProbe[list[GaugeValue]]]:
        """The probe of the server; none for a worker that does not run, since its event loop would have to query."""
        watched = self._watched()
        if watched is None or (isinstance(watched, Worker) and watched.loop is None):
            return ()
        return (self._probe,)

    def _read(self) -> list[GaugeValue]:
        watched = self._watched()
        if watched is None:
            raise StoreUnavailable(
                f"{self._probe.what} was closed and can no longer be scraped; attach metrics to the new one"
            )
        return self._query(watched)

    def report(self, scrape: Scrape) -> None:
        """Add the metrics to ``scrape``, as far as the server has answered."""
        for probe in self.probes:
            scrape.add_gauge("effectonce_up", float(probe.value is not None), probe.what)
            for gauge in probe.value or ():
                scrape.add_gauge(gauge.name, gauge.value, *gauge.labels)
        watched = self._watched()
        if watched is not None:
            self._report_counts(watched, scrape)


def source_of(watched: Store | Worker | Relay) -> MetricsSource:
    if isinstance(watched, Worker):
        return MetricsSource(watched, f"dead letters of {watched.name}", _query_dead_letters, _report_worker)
    if isinstance(watched, Relay):
        return MetricsSource(watched, f"outbox in {store_name(watched.store)}", _query_outbox, _report_relay)
    query = partial(_query_records, watched_since=time.monotonic())
    return MetricsSource(watched, store_name(watched), query, _report_batches)


def store_name(store: Store) -> str:
    """Return the store's address, without secrets."""
    return repr(store.runtime.backend)


def _query_records(store: Store, watched_since: float) -> list[GaugeValue]:
    async def query(port: Port) -> tuple[Stats, int]:
        return await port.stats(), await port.now()

    stats, now = query_store(store, query)
    name = store_name(store)
    gauges = [GaugeValue("effectonce_records", count, name, state) for state, count in stats.counts.items()]
    gauges.append(GaugeValue("effectonce_in_doubt_oldest_seconds", _age(stats.oldest_in_doubt, now), name))
    if stats.swept_at is not None:
        gauges.append(GaugeValue("effectonce_sweep_age_seconds", _age(stats.swept_at, now), name))
    elif any(stats.counts.values()):  # F37: the sweeper has never succeeded
        gauges.append(GaugeValue("effectonce_sweep_age_seconds", time.monotonic() - watched_since, name))
    return gauges


def _report_batches(store: Store, scrape: Scrape) -> None:
    for kind, sizes in store.runtime.batch_sizes():
        scrape.add_batch_sizes(sizes, store_name(store), kind)


def _query_outbox(relay: Relay) -> list[GaugeValue]:
    backlog, now = relay.stats(), query_store(relay.store, lambda port: port.now())
    name = store_name(relay.store)
    gauges = [
        GaugeValue("effectonce_outbox_messages", backlog.counts.get(state, 0), name, state)
        for state in ("pending", "waiting", "parked", "published")
    ]
    gauges.append(GaugeValue("effectonce_outbox_oldest_seconds", _age(backlog.oldest, now), name))
    if backlog.cleaned_at is not None:
        gauges.append(GaugeValue("effectonce_outbox_clean_age_seconds", _age(backlog.cleaned_at, now), name))
    return gauges


def _report_relay(relay: Relay, scrape: Scrape) -> None:
    ready = relay.phase == "running" and relay.outage is None
    scrape.add_gauge("effectonce_ready", float(ready), f"relay from {store_name(relay.store)}")


def _query_dead_letters(worker: Worker) -> list[GaugeValue]:
    async def count(queue: str) -> GaugeValue:
        dead_letters = worker.broker.backend.dead_letters(queue, group=worker.name)
        try:
            return GaugeValue("effectonce_dead_letters", await dead_letters.count(), queue, worker.name)
        finally:
            await dead_letters.close()

    async def count_all() -> list[GaugeValue]:
        # At the same time: a broker that counts by receiving takes seconds for each.
        return await asyncio.gather(*map(count, worker.queues))

    return run_in_loop(worker.loop, count_all, DEAD_LETTERS_TIMEOUT_S)


def _report_worker(worker: Worker, scrape: Scrape) -> None:
    scrape.add_gauge("effectonce_ready", float(worker.phase == "running"), f"worker {worker.name}")
    for consumer in worker.consumers:
        labels = (consumer.queue, worker.name)
        scrape.deliveries[*labels, "received"] += consumer.received
        for outcome, count in consumer.settler.settled.items():
            scrape.deliveries[*labels, outcome] += count
        scrape.add_gauge("effectonce_in_hand", len(consumer.in_flight), *labels)
        scrape.add_gauge("effectonce_running", sum(pool.claimed_count for pool in consumer.executor.pools), *labels)


def _age(since: int | None, now: int) -> float:
    """Return the seconds between ``since`` and ``now``, both in µs; 0 if ``since`` is None."""
    return 0.0 if since is None else max(0.0, (now - since) / 1e6)
