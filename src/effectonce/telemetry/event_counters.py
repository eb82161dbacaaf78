"""Prometheus counters of events by scope and kind, and histograms of how long claims and runs took."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric

from effectonce.contracts import Event

#: The events of the relay, whose scope is the message's destination.
RELAY_KINDS: Final = frozenset(("published", "publish_failed", "parked"))
#: These events end a run, and carry its duration.
RUN_END_KINDS: Final = frozenset(("completed", "first", "released", "failed", "in_doubt"))

#: The upper bounds of the buckets: from the time that a store in this process takes to that of a slow handler.
_BOUNDS_MS: Final = (0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000, 300_000)
BOUNDS_S: Final = tuple(bound / 1000 for bound in _BOUNDS_MS)


class EventCounters:
    """Counts events in metrics of prometheus_client: in this process, or, where processes share a
    ``PROMETHEUS_MULTIPROC_DIR``, in its files."""

    def __init__(self, registry: CollectorRegistry | None) -> None:
        options: dict[str, Any] = {"registry": registry}
        text = "What happened to operations, by kind of event."
        self._outcomes = Counter("effectonce_outcomes", text, ("scope", "kind"), **options)
        text = "Messages of an outbox, by what the relay did."
        self._relay = Counter("effectonce_relay", text, ("destination", "kind"), **options)
        options["buckets"] = BOUNDS_S
        text = "How long the store took to grant a claim."
        self._claims = Histogram("effectonce_claim_seconds", text, ("scope",), **options)
        text = "From the claim, or in mode T from the start of the handler, to its end."
        self._runs = Histogram("effectonce_run_seconds", text, ("scope", "outcome"), **options)

    def show_zero(self, kind: str, scope: str) -> None:
        """Expose the count of such events as 0, before there is one."""
        self._outcomes.labels(scope, kind)

    def count(self, event: Event, scope: str) -> None:
        """Count ``event`` under ``scope``."""
        kind, seconds = event.kind, event.seconds
        (self._relay if kind in RELAY_KINDS else self._outcomes).labels(scope, kind).inc()
        if seconds > 0 and kind == "claimed":
            self._claims.labels(scope).observe(seconds)
        elif seconds > 0 and kind in RUN_END_KINDS:
            self._runs.labels(scope, kind).observe(seconds)

    def families(self) -> Iterator[Metric]:
        """Yield the metric families, without the time at which each series was created: that would be as many series
        again."""
        for metric in (self._outcomes, self._relay, self._claims, self._runs):
            for family in metric.collect():
                family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
                yield family
