"""The poller: reads the figures of the overview in a thread of its own, for all visitors together."""

from __future__ import annotations

import logging
import re
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import pairwise
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import Struct

from effectonce.contracts.outbox import OutboxBacklog
from effectonce.errors import EffectOnceError, show
from effectonce.record import Stats

from .sources import Sources

log = logging.getLogger("effectonce")

POLL_INTERVAL_S: Final = 2.0
MAX_BUSY_SHARE: Final = 0.1
"""The largest share of its time that the poller may keep the store busy."""
MAX_SAMPLES: Final = 450
SLOW_POLL_INTERVAL_S: Final = 10.0
"""How often the costlier figures are polled: dead letters and scopes."""
METRICS_TIMEOUT_S: Final = 3.0
MAX_METRICS_BYTES: Final = 8_000_000
STOP_TIMEOUT_S: Final = 5.0

#: The kinds of events, as workers count them, whose sums are plotted.
FIRST_RUN_KINDS: Final = ("completed", "first")
DUPLICATE_KINDS: Final = ("replayed", "duplicate")
DELIVERY_KINDS: Final = ("claimed", "first", "duplicate", "replayed", "in_progress", "exhausted", "mismatch")

#: A line of a page of metrics that counts the events of one kind, in one scope: as `telemetry.event_counters` names
#: the metric and its labels. `test_event_counts_are_read_from_a_page_of_ours` holds the two together.
_EVENT_COUNT = re.compile(
    r'^effectonce_outcomes_total\{(?:.*,)?\s*kind="([a-z_]+)".*\}\s+([0-9.eE+-]+)(?:\s+-?[0-9]+)?$', re.MULTILINE
)


class Sample(Struct, frozen=True, kw_only=True):
    """The figures of one moment. None: the source is not configured, or did not answer."""

    at: float
    stats: Stats | None = None
    backlog: OutboxBacklog | None = None
    #: By the worker that answered: its events since it started, by kind.
    totals: dict[str, dict[str, float]] | None = None


class Poller:
    """Takes a sample every few seconds and keeps the last ones, for the plots. `errors` says which sources did not
    answer, and why."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self.samples: deque[Sample] = deque(maxlen=MAX_SAMPLES)
        self.dead_letter_counts: dict[str, int | None] = {}
        self.errors: dict[str, str] = {}
        self._slow_polled_at = 0.0
        self._has_sample = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    # -- the thread

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="effectonce-poller", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(STOP_TIMEOUT_S)

    def _run(self) -> None:
        while not self._stopping.is_set():
            started_at = time.monotonic()
            self.poll()
            took = time.monotonic() - started_at
            self._stopping.wait(max(POLL_INTERVAL_S, took / MAX_BUSY_SHARE))

    def poll(self) -> None:
        """Take one sample."""
        sources = self._sources
        at = time.time()
        stats = self._query("store", sources.polling_store.stats)
        backlog = self._query("outbox", sources.outbox_stats) if sources.outbox is not None else None
        totals = self._totals() if sources.metrics else None
        self.samples.append(Sample(at=at, stats=stats, backlog=backlog, totals=totals))
        self._has_sample.set()
        if time.monotonic() - self._slow_polled_at >= SLOW_POLL_INTERVAL_S:
            self._query("scopes", sources.discover_scopes)
            for name, queue in sources.dead_letter_queues.items():
                self.dead_letter_counts[name] = self._query(f"dead letters of {name}", queue.count)
            self._slow_polled_at = time.monotonic()

    def _query(self, source: str, query: Callable[[], Any]) -> Any:
        """Return what ``query`` returns; None, with an entry in `errors`, if it fails."""
        try:
            answer = query()
        except EffectOnceError as error:
            self.errors[source] = show(error, 300)
            return None
        except Exception as error:  # a driver's error may hold secrets
            log.warning("the dashboard could not read the %s: %s", source, type(error).__name__)
            self.errors[source] = type(error).__name__
            return None
        self.errors.pop(source, None)
        return answer

    # -- what it has polled

    def sample(self, wait: float = 0.1) -> Sample | None:
        """Return the newest sample. Right after the start, wait up to ``wait`` seconds for the first."""
        self._has_sample.wait(wait)
        return self.samples[-1] if self.samples else None

    def series(self) -> dict[str, list[Any]]:
        """Return what the plots show, by name, with one value for each time; None if it is not known."""
        pairs = list(pairwise(list(self.samples)))
        return {
            "at": [round(sample.at, 2) for _, sample in pairs],
            "deliveries": [_rate(a, b, DELIVERY_KINDS) for a, b in pairs],
            "first_runs": [_first_runs(a, b) for a, b in pairs],
            "duplicates": [_rate(a, b, DUPLICATE_KINDS) for a, b in pairs],
            "in_doubt": [None if b.stats is None else b.stats.counts.get("in_doubt", 0) for _, b in pairs],
            "outbox_lag": [_outbox_lag(b) for _, b in pairs],
        }

    # -- the workers' own counts

    def _totals(self) -> dict[str, dict[str, float]]:
        """Return the events that each worker has counted. Workers that do not answer are left out."""
        totals: dict[str, dict[str, float]] = {}
        for url in self._sources.metrics:
            counts = self._query(f"worker at {urlsplit(url).netloc.rpartition('@')[2]}", partial(_fetch_counts, url))
            if counts is not None:
                totals[url] = counts
        return totals


def _fetch_counts(url: str) -> dict[str, float]:
    """Return the events that a worker has counted, by kind."""
    with urllib.request.urlopen(url, timeout=METRICS_TIMEOUT_S) as answer:
        text = answer.read(MAX_METRICS_BYTES).decode("utf-8", "replace")
    return count_events(text)


def count_events(page: str) -> dict[str, float]:
    """Sum up the events in a page of metrics, by kind."""
    counts: dict[str, float] = {}
    for kind, count in _EVENT_COUNT.findall(page):
        counts[kind] = counts.get(kind, 0.0) + float(count)
    return counts


def _rate(before: Sample, after: Sample, kinds: Iterable[str]) -> float | None:
    """Return events per second of the workers that answered both times; None if none did."""
    if not before.totals or not after.totals:
        return None
    both = before.totals.keys() & after.totals.keys()
    growth = sum(_growth(before.totals[url], after.totals[url], kind) for url in both for kind in kinds)
    return round(growth / max(0.001, after.at - before.at), 3) if both else None


def _growth(before: Mapping[str, float], after: Mapping[str, float], kind: str) -> float:
    """Return by how much a worker's count has grown. A count that fell started from zero in a new process."""
    was, now = before.get(kind, 0.0), after.get(kind, 0.0)
    return now - was if now >= was else now


def _first_runs(before: Sample, after: Sample) -> float | None:
    """Return first runs per second: from the workers' counts, else from the store's count of done records."""
    if after.totals:
        return _rate(before, after, FIRST_RUN_KINDS)
    if before.stats is None or after.stats is None or "done" in after.stats.approximate:
        return None
    was, now = (stats.counts.get("done", 0) for stats in (before.stats, after.stats))
    if now >= after.stats.cap:
        return None
    return round(max(0, now - was) / max(0.001, after.at - before.at), 3)


def _outbox_lag(sample: Sample) -> float | None:
    """Return the age of the oldest unpublished message, in seconds."""
    backlog = sample.backlog
    if backlog is None:
        return None
    return 0.0 if backlog.oldest is None else round(max(0.0, sample.at - backlog.oldest / 1e6), 3)
