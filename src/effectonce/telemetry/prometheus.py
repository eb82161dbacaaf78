"""Prometheus: what a store, a worker and a relay do, as metrics in a registry.

    Metrics().watch(store)                      # in the default registry, beside your own
    Worker(…, listen="127.0.0.1:9464")          # serves that registry; `Relay` and `effectonce run --listen` alike

Labels are scopes, kinds and queues, never keys. Events are counted in this process; what has to be asked for (in doubt,
outbox, dead letters) is asked at a scrape, by threads of its own, at most every ten seconds. Where processes share a
``PROMETHEUS_MULTIPROC_DIR``, as forked web servers do, events are counted there.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

from effectonce.errors import MissingDriver

try:
    import prometheus_client as client
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
except ImportError as missing:
    raise MissingDriver("metrics need prometheus-client: pip install 'effectonce[prometheus]'") from missing

from effectonce.contracts import Event, Meter
from effectonce.relay.relay import Relay
from effectonce.store import Store
from effectonce.worker.worker import Worker

from .attach import MAX_SCOPES, OTHER, Watched, hook_into, store_of
from .cached_probe import refresh
from .histogram import BOUNDS, ScopeHistograms
from .metrics import Families, Source, source_of

#: Of these the scope is where a message goes to.
RELAYED = frozenset(("published", "publish_failed", "parked"))
#: What alerts look for. Counted from 0 as soon as a scope is known: in a series that begins with 1 Prometheus sees no
#: increase.
ALARMING = ("lease_lost", "fenced", "unrecorded", "unprotected")
#: These end a run, and say how long it took.
ENDS = ("completed", "released", "failed", "in_doubt")

OUTCOMES = ("effectonce_outcomes", "What happened to operations, by kind of event.", ("scope", "kind"))
RELAY = ("effectonce_relay", "What became of messages in an outbox, by kind of event.", ("destination", "kind"))
CLAIM = ("effectonce_claim_seconds", "How long the store took to grant a claim.", ("scope",))
RUN = ("effectonce_run_seconds", "From the claim to the end of the handler.", ("scope", "outcome"))


class Metrics:
    """The metrics of effectonce in ``registry`` (default: that of prometheus_client). All that are made for one
    registry are one, so nothing is counted twice."""

    def __init__(self, registry: client.CollectorRegistry | None = None) -> None:
        self.registry = client.REGISTRY if registry is None else registry
        board = _boards.get(self.registry)
        if board is None:
            board = _boards[self.registry] = Board(self.registry)
        self._board = board

    def watch(self, *watched: Watched) -> Metrics:
        """Count what happens to these from now on, and ask them for their figures at a scrape."""
        for each in watched:
            hook_into(each, self._board)
            self._board.add(each)
        return self

    #: Of `text`.
    content_type = client.CONTENT_TYPE_LATEST

    def text(self) -> bytes:
        """The registry in Prometheus' text format."""
        registry = self.registry
        if self._board.shared:
            from prometheus_client.multiprocess import MultiProcessCollector

            registry = client.CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
            registry.register(self._board)
        return client.generate_latest(registry)


class Board:
    """What is counted, and who is asked. A hook of stores, and a collector of one registry."""

    def __init__(self, registry: client.CollectorRegistry) -> None:
        self.shared = bool(os.environ.get("PROMETHEUS_MULTIPROC_DIR"))
        self._scopes: dict[tuple[str, bool], ScopeHistograms] = {}
        self._sources: weakref.WeakKeyDictionary[Watched, Source] = weakref.WeakKeyDictionary()
        self._shares = _Shares(registry) if self.shared else None
        if not self.shared:
            registry.register(self)

    def add(self, watched: Watched) -> None:
        store = store_of(watched)
        for each in (watched, store):
            if isinstance(each, Store | Worker | Relay) and each not in self._sources:
                self._sources[each] = source_of(each)

    # -- a hook

    def wants(self, kind: str, scope: str) -> Meter:
        relayed = kind in RELAYED
        if self._shares is not None:
            return self._shares.meter(kind, scope, relayed)
        histograms = self._scopes.get((scope, relayed))
        if histograms is None:
            place = (scope if len(self._scopes) < MAX_SCOPES else OTHER, relayed)
            histograms = self._scopes.setdefault(place, ScopeHistograms(ALARMING if scope and not relayed else ()))
        return histograms.meter(kind)

    def __call__(self, event: Event) -> None:
        """Never called: it takes meters only."""

    # -- a collector

    def describe(self) -> Iterable[Any]:
        return ()  # so that registering asks nobody

    def collect(self) -> Iterator[Any]:
        sources = list(self._sources.values())
        refresh(reading for source in sources for reading in source.readings)
        if not self.shared:
            yield from self._counted()
        families = Families()
        for source in sources:
            source.report(families)
        yield from families.all()

    def _counted(self) -> Iterator[Any]:
        outcomes, relay = (_family(CounterMetricFamily, each) for each in (OUTCOMES, RELAY))
        claim, run = (_family(HistogramMetricFamily, each) for each in (CLAIM, RUN))
        for (scope, relayed), histograms in tuple(self._scopes.items()):
            for kind, histogram in tuple(histograms.fold().items()):
                (relay if relayed else outcomes).add_metric([scope, kind], histogram.count)
                if kind == "claimed" and histogram.timed:
                    claim.add_metric([scope], histogram.buckets(), histogram.total)
                elif kind in ENDS and histogram.timed:
                    run.add_metric([scope, kind], histogram.buckets(), histogram.total)
        yield from (outcomes, relay, claim, run)


class _Shares:
    """The same in files that several processes share: prometheus_client's own counters, one at a time."""

    def __init__(self, registry: client.CollectorRegistry) -> None:
        self._outcomes, self._relay = (
            client.Counter(name, text, labels, registry=registry) for name, text, labels in (OUTCOMES, RELAY)
        )
        self._claim, self._run = (
            client.Histogram(name, text, labels, registry=registry, buckets=BOUNDS)
            for name, text, labels in (CLAIM, RUN)
        )
        self._seen: set[str] = set()

    def meter(self, kind: str, scope: str, relayed: bool) -> Meter:
        if scope not in self._seen and len(self._seen) >= MAX_SCOPES:
            scope = OTHER
        if scope and not relayed and scope not in self._seen:
            for each in ALARMING:
                self._outcomes.labels(scope, each)
        self._seen.add(scope)
        counter = (self._relay if relayed else self._outcomes).labels(scope, kind)
        timer = self._claim.labels(scope) if kind == "claimed" else None
        if kind in ENDS:
            timer = self._run.labels(scope, kind)

        def meter(seconds: float) -> None:
            counter.inc()
            if timer is not None and seconds > 0:
                timer.observe(seconds)

        return meter


def _family(kind: Any, spec: tuple[str, str, tuple[str, ...]]) -> Any:
    name, text, labels = spec
    return kind(name, text, labels=labels)


_boards: weakref.WeakKeyDictionary[client.CollectorRegistry, Board] = weakref.WeakKeyDictionary()
