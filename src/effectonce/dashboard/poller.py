"""The figures of the overview: read once for everybody, in a thread of its own, as often as that is cheap."""

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

EVERY: Final = 2.0
SHARE: Final = 0.1
"""The most of its time that watching may ask the store for answers."""
KEPT: Final = 450
SELDOM: Final = 10.0
"""How often what costs more is asked for: dead letters and scopes."""
LARGEST: Final = 8_000_000

_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+([0-9.eE+-]+)(?:\s+-?[0-9]+)?$")
_KIND = re.compile(r'(?:^|,)\s*kind="([a-z_]+)"')


class Sample(Struct, frozen=True, kw_only=True):
    """What was seen at one moment. None: it was not asked for, or did not answer."""

    at: float
    stats: Stats | None = None
    backlog: OutboxBacklog | None = None
    totals: dict[str, dict[str, float]] | None = None  # by worker that answered: events since it started, by kind


class Watcher:
    """Keeps the last samples. `sample` is the newest, `errors` what did not answer, by source."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self.samples: deque[Sample] = deque(maxlen=KEPT)
        self.letters: dict[str, int | None] = {}
        self.errors: dict[str, str] = {}
        self._looked = 0.0
        self._first = threading.Event()
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    # -- the thread

    def start(self) -> None:
        self._thread = threading.Thread(target=self._watch, name="effectonce-watcher", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._end.set()
        if self._thread is not None:
            self._thread.join(5)

    def _watch(self) -> None:
        while not self._end.is_set():
            began = time.monotonic()
            self.look()
            took = time.monotonic() - began
            self._end.wait(max(EVERY, took / SHARE))

    def look(self) -> None:
        """Take one sample."""
        sources = self._sources
        at = time.time()
        stats = self._asked("store", sources.watched.stats)
        backlog = self._asked("outbox", sources.outbox_stats) if sources.outbox is not None else None
        totals = self._totals() if sources.metrics else None
        self.samples.append(Sample(at=at, stats=stats, backlog=backlog, totals=totals))
        self._first.set()
        if time.monotonic() - self._looked >= SELDOM:
            self._asked("scopes", sources.look_for_scopes)
            for name, queue in sources.letters.items():
                self.letters[name] = self._asked(f"dead letters of {name}", queue.count)
            self._looked = time.monotonic()

    def _asked(self, source: str, ask: Callable[[], Any]) -> Any:
        try:
            answer = ask()
        except EffectOnceError as error:
            self.errors[source] = show(error, 300)
            return None
        except Exception as error:  # a driver's own, or a URL that leads nowhere: its text may hold secrets
            log.warning("the dashboard could not read the %s: %s", source, type(error).__name__)
            self.errors[source] = type(error).__name__
            return None
        self.errors.pop(source, None)
        return answer

    # -- what it has seen

    def sample(self, patience: float = 0.1) -> Sample | None:
        """The newest; right after the start it is waited for a moment."""
        self._first.wait(patience)
        return self.samples[-1] if self.samples else None

    def series(self) -> dict[str, list[Any]]:
        """What the plots show, by name, one value for each time; None where nobody knows."""
        samples = list(self.samples)
        pairs = list(pairwise(samples))
        return {
            "at": [round(each.at, 2) for _, each in pairs],
            "deliveries": [_rate(a, b, DELIVERIES) for a, b in pairs],
            "first_runs": [_first_runs(a, b) for a, b in pairs],
            "duplicates": [_rate(a, b, DUPLICATES) for a, b in pairs],
            "in_doubt": [None if b.stats is None else b.stats.counts.get("in_doubt", 0) for _, b in pairs],
            "outbox_lag": [_lag(b) for _, b in pairs],
        }

    # -- the workers' own counts

    def _totals(self) -> dict[str, dict[str, float]]:
        """The events that the workers have counted, those of one that does not answer left out."""
        totals: dict[str, dict[str, float]] = {}
        for url in self._sources.metrics:
            counts = self._asked(f"worker at {urlsplit(url).netloc.rpartition('@')[2]}", partial(_counted, url))
            if counts is not None:
                totals[url] = counts
        return totals


def _counted(url: str) -> dict[str, float]:
    """What a worker has counted, by kind, of all of its scopes together."""
    with urllib.request.urlopen(url, timeout=3) as answer:
        text = answer.read(LARGEST).decode("utf-8", "replace")
    counts: dict[str, float] = {}
    for kind, value in events_in(text):
        counts[kind] = counts.get(kind, 0.0) + value
    return counts


#: The metric in which a worker counts what happened, by kind of event.
METRIC: Final = "effectonce_outcomes_total"
FIRST_RUNS: Final = ("completed",)
DUPLICATES: Final = ("replayed",)
DELIVERIES: Final = ("claimed", "replayed", "in_progress", "exhausted", "mismatch")


def events_in(text: str) -> Iterable[tuple[str, float]]:
    """(kind, count) of every sample of `METRIC` in a page of metrics."""
    for row in text.splitlines():
        if row.startswith(METRIC):
            found = _SAMPLE.match(row)
            kind = _KIND.search(found[2] or "") if found is not None else None
            if found is not None and kind is not None:
                yield kind[1], float(found[3])


def _rate(before: Sample, after: Sample, kinds: Iterable[str]) -> float | None:
    """Events a second, of the workers that answered both times; None where none did."""
    if not before.totals or not after.totals:
        return None
    both = before.totals.keys() & after.totals.keys()
    grown = sum(_grown(before.totals[url], after.totals[url], kind) for url in both for kind in kinds)
    return round(grown / max(0.001, after.at - before.at), 3) if both else None


def _grown(before: Mapping[str, float], after: Mapping[str, float], kind: str) -> float:
    """By how much a worker's count has grown. One that has fallen began anew with its process."""
    was, now = before.get(kind, 0.0), after.get(kind, 0.0)
    return now - was if now >= was else now


def _first_runs(before: Sample, after: Sample) -> float | None:
    """By the workers' counts, else by how many records there are more, as far as the store counts."""
    if after.totals:
        return _rate(before, after, FIRST_RUNS)
    if before.stats is None or after.stats is None or "done" in after.stats.approximate:
        return None
    was, now = (stats.counts.get("done", 0) for stats in (before.stats, after.stats))
    if now >= after.stats.cap:
        return None
    return round(max(0, now - was) / max(0.001, after.at - before.at), 3)


def _lag(sample: Sample) -> float | None:
    """How old the oldest message is that has not left, in seconds."""
    backlog = sample.backlog
    if backlog is None:
        return None
    return 0.0 if backlog.oldest is None else round(max(0.0, sample.at - backlog.oldest / 1e6), 3)
