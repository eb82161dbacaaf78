"""Prometheus: what a store, a worker and a relay do, as metrics in a registry.

    Metrics().watch(store)                      # in the default registry, beside your own
    Worker(…, listen="127.0.0.1:9464")          # serves that registry; `Relay` and `effectonce run --listen` alike

Labels are scopes, kinds and queues, never keys. Events are counted in this process. Figures that a server holds (in
doubt, outbox, dead letters) are queried at a scrape, in threads of their own, at most every ten seconds. Where
processes share a ``PROMETHEUS_MULTIPROC_DIR``, as forked web servers do, events are counted there.
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

from .attach import MAX_SCOPES, OTHER, Watched, hook_into, store_of
from .cached_probe import refresh
from .histogram import BOUNDS, ScopeHistograms
from .metrics import Families, MetricsSource, source_of

#: The events of the relay, whose scope is the message's destination.
RELAYED = frozenset(("published", "publish_failed", "parked"))
#: The kinds that alerts look for. They are counted from 0 as soon as a scope is known: Prometheus sees no increase in a
#: series that begins with 1.
ALERTING = ("lease_lost", "fenced", "unrecorded", "unprotected")
#: These events end a run, and carry its duration.
RUN_ENDS = ("completed", "released", "failed", "in_doubt")

OUTCOMES = ("effectonce_outcomes", "What happened to operations, by kind of event.", ("scope", "kind"))
RELAY = ("effectonce_relay", "What became of messages in an outbox, by kind of event.", ("destination", "kind"))
CLAIM = ("effectonce_claim_seconds", "How long the store took to grant a claim.", ("scope",))
RUN = ("effectonce_run_seconds", "From the claim to the end of the handler.", ("scope", "outcome"))


class Metrics:
    """The metrics of effectonce in ``registry`` (default: that of prometheus_client). All `Metrics` of one registry
    share their counters, so nothing is counted twice."""

    def __init__(self, registry: client.CollectorRegistry | None = None) -> None:
        self.registry = client.REGISTRY if registry is None else registry
        collector = _collectors.get(self.registry)
        if collector is None:
            collector = _collectors[self.registry] = EventCollector(self.registry)
        self._collector = collector

    def watch(self, *watched: Watched) -> Metrics:
        """Count what happens to these from now on, and ask them for their figures at a scrape."""
        for source in watched:
            hook_into(source, self._collector)
            self._collector.add(source)
        return self

    #: The content type of `text`.
    content_type = client.CONTENT_TYPE_LATEST

    def text(self) -> bytes:
        """Return the registry in Prometheus' text format."""
        registry = self.registry
        if self._collector.shared:
            from prometheus_client.multiprocess import MultiProcessCollector

            registry = client.CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
            registry.register(self._collector)
        return client.generate_latest(registry)


class EventCollector:
    """Counts events as a hook of stores, and reports them with the sources' figures as a collector of one registry."""

    def __init__(self, registry: client.CollectorRegistry) -> None:
        self.shared = bool(os.environ.get("PROMETHEUS_MULTIPROC_DIR"))
        self._scopes: dict[tuple[str, bool], ScopeHistograms] = {}
        self._sources: weakref.WeakKeyDictionary[Watched, MetricsSource] = weakref.WeakKeyDictionary()
        self._multiprocess = _MultiprocessCounters(registry) if self.shared else None
        if not self.shared:
            registry.register(self)

    def add(self, watched: Watched) -> None:
        for source in (watched, store_of(watched)):
            if source is not None and source not in self._sources:
                self._sources[source] = source_of(source)

    # -- a hook

    def wants(self, kind: str, scope: str) -> Meter:
        relayed = kind in RELAYED
        if self._multiprocess is not None:
            return self._multiprocess.meter(kind, scope, relayed)
        histograms = self._scopes.get((scope, relayed))
        if histograms is None:
            counted_as = (scope if len(self._scopes) < MAX_SCOPES else OTHER, relayed)
            histograms = self._scopes.setdefault(counted_as, ScopeHistograms(ALERTING if scope and not relayed else ()))
        return histograms.meter(kind)

    def __call__(self, event: Event) -> None:
        """Never called: `wants` returns a meter for every event."""

    # -- a collector

    def describe(self) -> Iterable[Any]:
        return ()  # so that registering queries no server

    def collect(self) -> Iterator[Any]:
        sources = list(self._sources.values())
        refresh(probe for source in sources for probe in source.probes)
        if not self.shared:
            yield from self._event_families()
        families = Families()
        for source in sources:
            source.report(families)
        yield from families.collect()

    def _event_families(self) -> Iterator[Any]:
        outcomes, relay = (_family(CounterMetricFamily, spec) for spec in (OUTCOMES, RELAY))
        claim, run = (_family(HistogramMetricFamily, spec) for spec in (CLAIM, RUN))
        for (scope, relayed), histograms in tuple(self._scopes.items()):
            for kind, histogram in tuple(histograms.fold().items()):
                (relay if relayed else outcomes).add_metric([scope, kind], histogram.count)
                if kind == "claimed" and histogram.timed:
                    claim.add_metric([scope], histogram.buckets(), histogram.total)
                elif kind in RUN_ENDS and histogram.timed:
                    run.add_metric([scope, kind], histogram.buckets(), histogram.total)
        yield from (outcomes, relay, claim, run)


class _MultiprocessCounters:
    """Counts events in files that several processes share, with prometheus_client's own counters."""

    def __init__(self, registry: client.CollectorRegistry) -> None:
        self._outcomes, self._relay = (
            client.Counter(name, text, labels, registry=registry) for name, text, labels in (OUTCOMES, RELAY)
        )
        self._claim, self._run = (
            client.Histogram(name, text, labels, registry=registry, buckets=BOUNDS)
            for name, text, labels in (CLAIM, RUN)
        )
        self._known_scopes: set[str] = set()

    def meter(self, kind: str, scope: str, relayed: bool) -> Meter:
        if scope not in self._known_scopes and len(self._known_scopes) >= MAX_SCOPES:
            scope = OTHER
        if scope and not relayed and scope not in self._known_scopes:
            for alerting in ALERTING:
                self._outcomes.labels(scope, alerting)
        self._known_scopes.add(scope)
        counter = (self._relay if relayed else self._outcomes).labels(scope, kind)
        timer = self._claim.labels(scope) if kind == "claimed" else None
        if kind in RUN_ENDS:
            timer = self._run.labels(scope, kind)

        def meter(seconds: float) -> None:
            counter.inc()
            if timer is not None and seconds > 0:
                timer.observe(seconds)

        return meter


def _family(kind: Any, spec: tuple[str, str, tuple[str, ...]]) -> Any:
    name, text, labels = spec
    return kind(name, text, labels=labels)


_collectors: weakref.WeakKeyDictionary[client.CollectorRegistry, EventCollector] = weakref.WeakKeyDictionary()
