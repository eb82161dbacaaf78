"""Doctor's checks of a store: its server, its clock, its sweeper, its records in doubt, and its outbox."""

from __future__ import annotations

import time
from typing import Any

from effectonce.contracts import OutboxBackend
from effectonce.errors import ConfigurationError, EffectOnceError, UnsafeStore
from effectonce.record import Figures
from effectonce.relay.relay import ask_outbox
from effectonce.store import Store, require_existing

from .advice import DoctorSeverity
from .findings import Findings, Limits, format_age, format_span

_SAMPLE_RECORDS = 200


def examine_store(findings: Findings, store: Store, table: str | None, limits: Limits) -> None:
    """Examine a store, and the outbox beside it. The work is bounded however much it holds: no table is scanned."""
    with findings.catch("store"):
        about = repr(store.runtime.backend)
        with findings.catch(about):
            require_existing(store.runtime.backend, "make it with: effectonce migrate")
            try:
                store.check()
            except UnsafeStore as error:  # it answers: the rest can be examined
                findings.add_error(error, about)
            _StoreExamination(findings, store, about, limits).run()
            _examine_outbox(findings, store, table, limits)


class _StoreExamination:
    """The checks of one store that answers, on one reading of its clock, its statistics and its server's figures."""

    def __init__(self, findings: Findings, store: Store, about: str, limits: Limits) -> None:
        self._findings = findings
        self._store = store
        self._about = about
        self._limits = limits
        self._stats = store.stats()
        self._figures = store.figures(overdue_by=limits.unswept) or Figures()
        self._now = store.now()

    def run(self) -> None:
        self._check_clock()
        self._check_sweeper()
        self._check_in_doubt()
        self._check_server()
        self._check_redis()

    def _add(self, code: str, what: str, **details: Any) -> None:
        self._findings.add(code, self._about, what, **details)

    def _seconds_since(self, at: int) -> float:
        return (self._now - at) / 1e6

    def _check_clock(self) -> None:
        before = time.time()
        store_time = self._store.now() / 1e6
        after = time.time()
        # The store read its clock between the two: report only a skew that this cannot explain.
        skew = store_time - min(max(store_time, before), after)
        if abs(skew) > self._limits.skew:
            direction = "ahead of" if skew > 0 else "behind"
            self._add("clock-skew", f"the store's clock is {format_span(abs(skew))} {direction} this machine's")

    def _check_sweeper(self) -> None:
        """Check for F37, a sweeper that stopped silently. A new store may not have been swept yet."""
        stats, figures = self._stats, self._figures
        swept_at = stats.swept_at or self._oldest_record_at()
        if self._seconds_since(swept_at) > self._limits.unswept and any(stats.counts.values()):
            last = f"the last sweep was {format_age(self._now, swept_at)}" if stats.swept_at else "it was never swept"
            self._add("sweeper-stale", last)
        oldest = figures.oldest_overdue
        if oldest is not None and self._seconds_since(oldest) > self._limits.overdue:
            count = f"{figures.overdue:,}{' or more' if figures.overdue >= figures.cap else ''}"
            age = format_age(self._now, oldest)
            self._add("overdue-records", f"{count} expired records were not deleted, the oldest {age}")

    def _oldest_record_at(self) -> int:
        """Return when the oldest of some records was created."""
        records = self._store.list(limit=_SAMPLE_RECORDS).records
        return min((record.created_at for record in records), default=self._now)

    def _check_in_doubt(self) -> None:
        count, oldest = self._stats.counts.get("in_doubt", 0), self._stats.oldest_in_doubt
        if count and oldest is not None:
            age = self._seconds_since(oldest)
            severity: DoctorSeverity | None = "warning" if age > self._limits.unattended else None
            self._add("in-doubt", f"in doubt: {count:,}, the oldest for {format_span(age)}", severity=severity)

    def _check_server(self) -> None:
        figures, limits = self._figures, self._limits
        if figures.transaction_age > limits.transaction:
            what = f"a transaction has been open for {format_span(figures.transaction_age)} ({figures.transaction})"
            self._add("long-transaction", what, transaction=figures.transaction.partition(",")[0])
        for table, (live, dead) in figures.rows.items():
            if dead >= limits.dead_rows and dead / (live + dead) >= limits.dead_share:
                self._add("dead-rows", f"{table} has {dead:,} dead rows beside {live:,} live ones", table=table)
        settings = figures.settings
        if settings.get("autovacuum") == "off":
            self._add("autovacuum-off", "the server runs with autovacuum=off")
        if settings.get("journal_mode") == "wal" and settings.get("synchronous") not in (None, "2", "3"):
            self._add("synchronous", f"the file is written with synchronous={settings['synchronous']} in WAL mode")

    def _check_redis(self) -> None:
        settings = self._figures.settings
        if settings.get("persistence") == "none":
            self._add("persistence", "Redis keeps nothing on disk", lost="all records")
        elif settings.get("persistence") == "snapshots":
            self._add("persistence", "Redis keeps snapshots only on disk", lost="the records since the last snapshot")
        if settings.get("persistence_writes") == "err":
            self._add("persistence-failed", "Redis could not write its data to disk the last time it tried")
        used, limit = self._figures.memory or (0, 0)
        if limit and used / limit >= self._limits.memory:
            self._add("memory", f"Redis uses {used / 2**20:,.0f} of {limit / 2**20:,.0f} MB ({used / limit:.0%})")


def _examine_outbox(findings: Findings, store: Store, table: str | None, limits: Limits) -> None:
    """Find messages that are parked or not published. Without ``table``, an outbox that is missing, or that this user
    may not read, is not a finding."""
    backend = store.runtime.backend
    if table is None and not isinstance(backend, OutboxBackend):
        return
    about = f"{backend!r} {table or 'outbox'}"
    options = f"--store '{backend!r}'" + (f" --table {table}" if table is not None else "")
    try:
        backlog, now = ask_outbox(store, table, lambda port: port.stats()), store.now()
    except EffectOnceError as error:
        if table is not None or not isinstance(error, ConfigurationError):
            findings.add_error(error, about)
        return
    parked = backlog.counts.get("parked", 0)
    if parked:
        count = f"{parked:,}{'+' if parked >= backlog.cap else ''}"
        findings.add("outbox-parked", about, f"parked: {count}, which the broker refused for good", options=options)
    if backlog.oldest is not None and (now - backlog.oldest) / 1e6 > limits.outbox:
        what = f"the oldest unpublished message was written {format_age(now, backlog.oldest)}"
        findings.add("outbox-lag", about, what, options=options)
    published, cleaned_at = backlog.counts.get("published", 0), backlog.cleaned_at or 0
    if published >= backlog.cap and (now - cleaned_at) / 1e6 > limits.unswept:
        ended = format_age(now, cleaned_at) if cleaned_at else "never"
        what = f"{published:,} or more published messages are kept; the last clean-up ended {ended}"
        findings.add("outbox-growing", about, what)


def shortest_retention(store: Store) -> tuple[str, float] | None:
    """Return the scope with the shortest retention among some finished records, and that retention in seconds."""
    spans = [
        ((record.expires_at - record.changed_at) / 1e6, record.scope)
        for record in store.list(state="done", limit=_SAMPLE_RECORDS).records
        if record.expires_at is not None
    ]
    return (min(spans)[1], min(spans)[0]) if spans else None
