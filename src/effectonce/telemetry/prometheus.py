"""Prometheus: what a store, a worker and a relay do, as metrics in a registry.

    Metrics().watch(store)                      # in the default registry, beside your own
    Worker(…, listen="127.0.0.1:9464")          # serves that registry; `Relay` and `effectonce run --listen` alike

Labels are scopes, kinds and queues, never keys. Events are counted in this process; where processes share a
``PROMETHEUS_MULTIPROC_DIR``, as forked web servers do, they are counted there. Figures that a server holds (in doubt,
outbox, dead letters) are queried at a scrape, in threads of their own, at most every ten seconds.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

from effectonce.errors import MissingDriver

try:
    import prometheus_client as client
except ImportError as missing:
    raise MissingDriver("metrics need prometheus-client: pip install 'effectonce[prometheus]'") from missing

from effectonce.contracts import Event
from effectonce.inbox.inbox import Inbox

from .cached_probe import refresh
from .event_counters import RELAY_KINDS, EventCounters
from .hooks import MAX_SCOPES, OTHER_SCOPES, Watched, hook_into, store_of
from .metrics import MetricsSource, Scrape, source_of

#: The kinds that alerts look for. Their counters are exposed as 0 as soon as a scope is known: Prometheus sees no
#: increase in a series that begins with 1.
ALERT_KINDS = ("lease_lost", "fenced", "unrecorded", "unprotected")


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
        """Return the metrics of the registry in Prometheus' text format."""
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
        self._counters = EventCounters(registry if self.shared else None)
        self._scopes: set[tuple[str, bool]] = set()  # each with whether it is a destination of the relay
        self._sources: weakref.WeakKeyDictionary[Watched, MetricsSource] = weakref.WeakKeyDictionary()
        if not self.shared:
            registry.register(self)

    def add(self, watched: Watched) -> None:
        for source in (watched, store_of(watched)):
            # An inbox has no figures of its own: nothing is asked of its database.
            if source is not None and not isinstance(source, Inbox) and source not in self._sources:
                self._sources[source] = source_of(source)

    # -- a hook

    def __call__(self, event: Event) -> None:
        scope, is_relay = event.scope, event.kind in RELAY_KINDS
        if (scope, is_relay) not in self._scopes:
            if len(self._scopes) >= MAX_SCOPES:
                scope = OTHER_SCOPES
            self._scopes.add((scope, is_relay))
            for alert_kind in ALERT_KINDS if scope and not is_relay else ():
                self._counters.show_zero(alert_kind, scope)
        self._counters.count(event, scope)

    # -- a collector

    def describe(self) -> Iterable[Any]:
        return ()  # so that registering queries no server

    def collect(self) -> Iterator[Any]:
        sources = list(self._sources.values())
        refresh(probe for source in sources for probe in source.probes)
        if not self.shared:  # prometheus_client itself collects the counters in files
            yield from self._counters.families()
        scrape = Scrape()
        for source in sources:
            source.report(scrape)
        yield from scrape.families()


_collectors: weakref.WeakKeyDictionary[client.CollectorRegistry, EventCollector] = weakref.WeakKeyDictionary()
