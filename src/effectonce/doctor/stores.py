"""Doctor's checks of a store: its server, its clock, its sweeper, what has piled up in it, and its outbox."""

from __future__ import annotations

import time

from effectonce.contracts import OutboxBackend
from effectonce.errors import ConfigurationError, EffectOnceError, UnsafeStore
from effectonce.record import Figures, Stats
from effectonce.relay.relay import ask_outbox
from effectonce.store import Store, require_existing

from .findings import Findings, Limits, format_age, format_span

_SAMPLE_SIZE = 200


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
            _check_clock(findings, store, about, limits)
            now, stats = store.now(), store.stats()
            figures = store.figures(overdue_by=limits.unswept) or Figures()
            sample = store.list(limit=_SAMPLE_SIZE).records
            swept_at = stats.swept_at or min((record.created_at for record in sample), default=now)
            _check_sweeper(findings, stats, figures, now, swept_at, about, limits)
            _check_in_doubt(findings, stats, now, about, limits)
            _check_server(findings, figures, about, limits)
            _check_redis(findings, figures, about, limits)
            _examine_outbox(findings, store, table, limits)


def _check_clock(findings: Findings, store: Store, about: str, limits: Limits) -> None:
    before = time.time()
    store_time = store.now() / 1e6
    after = time.time()
    # The store read its clock between the two: report only a skew that this cannot explain.
    skew = store_time - min(max(store_time, before), after)
    if abs(skew) > limits.skew:
        word = "ahead of" if skew > 0 else "behind"
        what = f"the store's clock is {format_span(abs(skew))} {word} this machine's"
        findings.add("clock-skew", about, what)


def _check_sweeper(
    findings: Findings, stats: Stats, figures: Figures, now: int, swept_at: int, about: str, limits: Limits
) -> None:
    """Check for F37, a sweeper that stopped silently. A new store may not have been swept yet."""
    if (now - swept_at) / 1e6 > limits.unswept and any(stats.counts.values()):
        last = f"the last sweep was {format_age(now, swept_at)}" if stats.swept_at else "it was never swept"
        findings.add("sweeper-stale", about, last)
    oldest = figures.oldest_overdue
    if oldest is not None and (now - oldest) / 1e6 > limits.overdue:
        count = f"{figures.overdue:,}{' or more' if figures.overdue >= figures.cap else ''}"
        what = f"{count} expired records were not deleted, the oldest {format_age(now, oldest)}"
        findings.add("overdue-records", about, what)


def _check_in_doubt(findings: Findings, stats: Stats, now: int, about: str, limits: Limits) -> None:
    count, oldest = stats.counts.get("in_doubt", 0), stats.oldest_in_doubt
    if count and oldest is not None:
        age = (now - oldest) / 1e6
        what = f"in doubt: {count:,}, the oldest for {format_span(age)}"
        findings.add("in-doubt", about, what, severity="warning" if age > limits.unattended else None)


def _check_server(findings: Findings, figures: Figures, about: str, limits: Limits) -> None:
    if figures.transaction_age > limits.transaction:
        what = f"a transaction has been open for {format_span(figures.transaction_age)} ({figures.transaction})"
        findings.add("long-transaction", about, what, transaction=figures.transaction.partition(",")[0])
    for table, (live, dead) in figures.rows.items():
        if dead >= limits.dead_rows and dead / (live + dead) >= limits.dead_share:
            findings.add("dead-rows", about, f"{table} has {dead:,} dead rows beside {live:,} live ones", table=table)
    settings = figures.settings
    if settings.get("autovacuum") == "off":
        findings.add("autovacuum-off", about, "the server runs with autovacuum=off")
    if settings.get("journal_mode") == "wal" and settings.get("synchronous") not in (None, "2", "3"):
        what = f"the file is written with synchronous={settings['synchronous']} in WAL mode"
        findings.add("synchronous", about, what)


def _check_redis(findings: Findings, figures: Figures, about: str, limits: Limits) -> None:
    persistence = figures.settings.get("persistence")
    if persistence == "none":
        findings.add("persistence", about, "Redis keeps nothing on disk", lost="all records")
    elif persistence == "snapshots":
        what = "Redis keeps snapshots only on disk"
        findings.add("persistence", about, what, lost="the records since the last snapshot")
    if figures.settings.get("persistence_writes") == "err":
        what = "Redis could not write its data to disk the last time it tried"
        findings.add("persistence-failed", about, what)
    used, limit = figures.memory or (0, 0)
    if limit and used / limit >= limits.memory:
        what = f"Redis uses {used / 2**20:,.0f} of {limit / 2**20:,.0f} MB ({used / limit:.0%})"
        findings.add("memory", about, what)


def _examine_outbox(findings: Findings, store: Store, table: str | None, limits: Limits) -> None:
    """Find parked keys, and messages that are not published. Without ``table``, an outbox that is missing, or that this
    user may not read, is not a finding."""
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
        for record in store.list(state="done", limit=_SAMPLE_SIZE).records
        if record.expires_at is not None
    ]
    return (min(spans)[1], min(spans)[0]) if spans else None
