"""What stores, workers and relays are asked for at a scrape, and the metrics it becomes."""

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
from .cached_probe import Reading, ask, in_loop

T = TypeVar("T")

#: name: (help, labels, what two sources with the same labels come to)
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
}  # fmt: skip
DELIVERIES = "effectonce_deliveries"
BATCHES = "effectonce_batch_size"


class Families:
    """Figures on their way out; those with the same name and labels become one."""

    def __init__(self) -> None:
        self._gauges: dict[str, dict[tuple[str, ...], float]] = {name: {} for name in GAUGES}
        self._deliveries: dict[tuple[str, ...], int] = {}
        self._batches: dict[tuple[str, ...], list[int]] = {}

    def gauge(self, name: str, value: float, *labels: str) -> None:
        known = self._gauges[name]
        before = known.get(labels, 0.0)
        known[labels] = before + value if GAUGES[name][2] == "sum" else max(before, value)

    def delivered(self, count: int, *labels: str) -> None:
        self._deliveries[labels] = self._deliveries.get(labels, 0) + count

    def batches(self, sizes: Sequence[int], *labels: str) -> None:
        before = self._batches.get(labels) or [0] * len(sizes)
        self._batches[labels] = [one + other for one, other in zip(before, sizes, strict=True)]

    def all(self) -> Iterator[Any]:
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
    found, seen = [], 0
    for bits in range(1, len(sizes)):
        seen += sizes[bits]
        if bits <= 10:
            found.append((str((1 << bits) - 1), float(seen)))
    return [*found, ("+Inf", float(seen))]


class Source(Protocol):
    """One that is asked. It holds what it asks weakly: watching keeps nobody alive."""

    @property
    def readings(self) -> Sequence[Reading[Any]]: ...

    def report(self, families: Families) -> None: ...


def source_of(watched: Watched) -> Source:
    if isinstance(watched, Worker):
        return _OfWorker(watched)
    return _OfRelay(watched) if isinstance(watched, Relay) else _OfStore(watched)


def _answers(readings: Sequence[Reading[Any]], families: Families) -> None:
    for reading in readings:
        families.gauge("effectonce_up", float(reading.value is not None), reading.what)


class _Aged(Struct):
    """Figures with times in them, and the time of the same clock."""

    figures: Any
    now: int

    def age(self, since: int | None) -> float | None:
        return None if since is None else max(0.0, (self.now - since) / 1e6)


class _OfStore:
    def __init__(self, store: Store) -> None:
        self._store = weakref.ref(store)
        self._name = name_of(store)
        self._since = time.monotonic()
        self._stats: Reading[_Aged] = Reading(self._name, self._read)
        self.readings = (self._stats,)

    def _read(self) -> _Aged:
        async def both(port: Port) -> _Aged:
            return _Aged(await port.stats(), await port.now())

        return ask(_there(self._store), both)

    def report(self, families: Families) -> None:
        _answers(self.readings, families)
        store = self._store()
        if store is None:
            return
        aged = self._stats.value
        if aged is not None:
            stats: Stats = aged.figures
            for state, count in stats.counts.items():
                families.gauge("effectonce_records", count, self._name, state)
            _age(families, "effectonce_in_doubt_oldest_seconds", aged.age(stats.oldest_in_doubt) or 0.0, self._name)
            swept = aged.age(stats.swept_at)
            if swept is None and any(stats.counts.values()):  # F37: a sweeper that has failed from the first day on
                swept = time.monotonic() - self._since
            _age(families, "effectonce_sweep_age_seconds", swept, self._name)
        for lane, sizes in store.engine.batch_sizes():
            families.batches(sizes, self._name, lane)


class _OfRelay:
    def __init__(self, relay: Relay) -> None:
        self._relay = weakref.ref(relay)
        self._name = name_of(relay.store)
        self._backlog: Reading[_Aged] = Reading(f"outbox in {self._name}", self._read)
        self.readings = (self._backlog,)

    def _read(self) -> _Aged:
        relay = _there(self._relay)
        return _Aged(relay.stats(), ask(relay.store, lambda port: port.now()))

    def report(self, families: Families) -> None:
        _answers(self.readings, families)
        relay, aged = self._relay(), self._backlog.value
        if relay is not None:
            ready = relay.phase == "running" and relay.outage is None
            families.gauge("effectonce_ready", float(ready), f"relay from {self._name}")
        if aged is not None:
            backlog: OutboxBacklog = aged.figures
            for state in ("pending", "waiting", "parked", "published"):
                families.gauge("effectonce_outbox_messages", backlog.counts.get(state, 0), self._name, state)
            _age(families, "effectonce_outbox_oldest_seconds", aged.age(backlog.oldest) or 0.0, self._name)
            _age(families, "effectonce_outbox_clean_age_seconds", aged.age(backlog.cleaned_at), self._name)


class _OfWorker:
    def __init__(self, worker: Worker) -> None:
        self._worker = weakref.ref(worker)
        self._dead: Reading[dict[str, int]] = Reading(f"dead letters of {worker.name}", self._read)

    @property
    def readings(self) -> Sequence[Reading[Any]]:
        worker = self._worker()
        return (self._dead,) if worker is not None and worker.loop is not None else ()

    def _read(self) -> dict[str, int]:
        worker = _there(self._worker)
        return in_loop(worker.loop, lambda: _count_dead(worker), 5.0)

    def report(self, families: Families) -> None:
        _answers(self.readings, families)
        worker = self._worker()
        if worker is None:
            return
        families.gauge("effectonce_ready", float(worker.phase == "running"), f"worker {worker.name}")
        for queue, count in (self._dead.value or {}).items() if self.readings else ():
            families.gauge("effectonce_dead_letters", count, queue, worker.name)
        for line in worker.lines:
            labels = (line.queue, worker.name)
            families.delivered(line.received, *labels, "received")
            for outcome, count in line.told.items():
                families.delivered(count, *labels, outcome)
            families.gauge("effectonce_in_hand", len(line.hand), *labels)
            families.gauge("effectonce_running", sum(slots.taken for slots in line.discipline.slots), *labels)


async def _count_dead(worker: Worker) -> dict[str, int]:
    found = {}
    for queue in worker.queues:
        letters = worker.broker.backend.dead_letters(queue, group=worker.name)
        try:
            found[queue] = await letters.count()
        finally:
            await letters.close()
    return found


def name_of(store: Store) -> str:
    """The store's address, without secrets."""
    return repr(store.engine.backend)


def _age(families: Families, name: str, age: float | None, *labels: str) -> None:
    if age is not None:
        families.gauge(name, age, *labels)


def _there(reference: weakref.ref[T]) -> T:
    found = reference()
    if found is None:
        raise StoreUnavailable("it is gone")
    return found
