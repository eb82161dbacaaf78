"""Doctor's checks of a store: its server, its clock, its sweeper, its records in doubt, and its outbox."""

from __future__ import annotations

import time

from effectonce.contracts import OutboxBackend
from effectonce.errors import ConfigurationError, UnsafeStore
from effectonce.record import Figures
from effectonce.relay.relay import ask_outbox
from effectonce.store import Store, require_existing

from .advice import DoctorSeverity
from .findings import Examination, Limits, OpenCheck, format_age, format_seconds, format_setting

STARTUP_CHECK = "start-up check"
_SAMPLE_RECORDS = 200


def examine_store(examination: Examination, store: Store, table: str | None, limits: Limits) -> None:
    """Examine a store, and the outbox beside it. The work is bounded however much it holds: no table is scanned."""
    with examination.check("store", STARTUP_CHECK) as check:
        check.about = repr(store.runtime.backend)
        require_existing(store.runtime.backend, "create it with: effectonce migrate")
        try:
            store.check()
        except UnsafeStore as error:  # it answers: the rest can be examined
            check.add_error(error)
        reading = _StoreReading(store, check.about, limits)
        check.saw = "it answers, its tables fit this release, and its settings keep the promise"
    if check.failed:
        rest = "clock, sweeper, expired records, records in doubt, server, outbox"
        examination.skip(check.about, rest, "the start-up check failed")
        return
    reading.check_all(examination)
    _examine_outbox(examination, store, table, limits)


class _StoreReading:
    """The checks of one store that answers, on one reading of its clock, its statistics and its server's figures."""

    def __init__(self, store: Store, about: str, limits: Limits) -> None:
        self._store = store
        self._about = about
        self._limits = limits
        self._stats = store.stats()
        figures = store.figures(overdue_by=limits.unswept)
        self._has_figures = figures is not None
        self._figures = figures or Figures()
        self._now = store.now()

    def check_all(self, examination: Examination) -> None:
        for name, make in (
            ("clock", self._check_clock),
            ("sweeper", self._check_sweeper),
            ("expired records", self._check_overdue),
            ("records in doubt", self._check_in_doubt),
            ("server", self._check_server),
        ):
            with examination.check(self._about, name) as check:
                make(check)

    def _seconds_since(self, at: int) -> float:
        return (self._now - at) / 1e6

    def _check_clock(self, check: OpenCheck) -> None:
        before = time.time()
        store_time = self._store.now() / 1e6
        after = time.time()
        # The store read its clock between the two: report only a skew that this cannot explain.
        skew = store_time - min(max(store_time, before), after)
        check.saw = f"within {format_setting(self._limits.skew)} of this machine's"
        if abs(skew) > self._limits.skew:
            direction = "ahead of" if skew > 0 else "behind"
            check.add("clock-skew", f"the store's clock is {format_seconds(abs(skew))} {direction} this machine's")

    def _check_sweeper(self, check: OpenCheck) -> None:
        """Check for F37, a sweeper that stopped silently. A new store may not have been swept yet."""
        stats = self._stats
        swept_at = stats.swept_at or self._oldest_record_at()
        last = (
            f"the last sweep was {format_age(self._now, swept_at)}" if stats.swept_at else "the store was never swept"
        )
        check.saw = last if stats.swept_at else f"{last}, and its records are not old enough for that to matter"
        if self._seconds_since(swept_at) > self._limits.unswept and any(stats.counts.values()):
            check.add("sweeper-stale", last)

    def _check_overdue(self, check: OpenCheck) -> None:
        figures = self._figures
        if not figures.cap:
            check.skipped = "this store does not count them"
            return
        count = f"{figures.overdue:,}{' or more' if figures.overdue >= figures.cap else ''}"
        check.saw = f"{count} wait for the sweeper" if figures.overdue else "none left"
        oldest = figures.oldest_overdue
        if oldest is not None and self._seconds_since(oldest) > self._limits.overdue:
            age = format_age(self._now, oldest)
            check.add("overdue-records", f"{count} expired records were not deleted, the oldest {age}")

    def _oldest_record_at(self) -> int:
        """Return when the oldest of some records was created."""
        records = self._store.list(limit=_SAMPLE_RECORDS).records
        return min((record.created_at for record in records), default=self._now)

    def _check_in_doubt(self, check: OpenCheck) -> None:
        check.saw = "none"
        count, oldest = self._stats.counts.get("in_doubt", 0), self._stats.oldest_in_doubt
        if count and oldest is not None:
            age = self._seconds_since(oldest)
            severity: DoctorSeverity | None = "warning" if age > self._limits.unattended else None
            check.add("in-doubt", f"in doubt: {count:,}, the oldest for {format_seconds(age)}", severity=severity)

    def _check_server(self, check: OpenCheck) -> None:
        if not self._has_figures:
            check.skipped = "this store has no figures of a server"
            return
        figures = self._figures
        seen = [f"{name}={value}" for name, value in figures.settings.items()]
        seen += [f"{table}: {live:,} rows, {dead:,} dead" for table, (live, dead) in figures.rows.items()]
        if figures.transaction_age_s:
            seen.append(f"the oldest transaction is {format_seconds(figures.transaction_age_s)} old")
        used, limit = figures.memory or (0, 0)
        if limit:
            seen.append(f"{used / 2**20:,.0f} of {limit / 2**20:,.0f} MB used")
        check.saw = ", ".join(seen)
        if not seen:
            check.skipped = "the server shows this user no figures"
        self._check_transactions_and_tables(check)
        self._check_settings(check)

    def _check_transactions_and_tables(self, check: OpenCheck) -> None:
        figures, limits = self._figures, self._limits
        if figures.transaction_age_s > limits.transaction:
            what = (
                f"a transaction has been open for {format_seconds(figures.transaction_age_s)} ({figures.transaction})"
            )
            check.add("long-transaction", what, transaction=figures.transaction.partition(",")[0])
        for table, (live, dead) in figures.rows.items():
            if dead >= limits.dead_rows and dead / (live + dead) >= limits.dead_share:
                check.add("dead-rows", f"{table} has {dead:,} dead rows beside {live:,} live ones", table=table)

    def _check_settings(self, check: OpenCheck) -> None:
        settings = self._figures.settings
        if settings.get("autovacuum") == "off":
            check.add("autovacuum-off", "the server runs with autovacuum=off")
        if settings.get("standbys", "0") != "0":
            if not settings.get("synchronous_standby_names"):
                check.add(
                    "asynchronous-standby", f"standbys follow ({settings['standbys']}), and commits wait for none"
                )
            elif settings.get("synchronous_commit") in ("local", "off"):
                what = f"commits wait for no standby: synchronous_commit={settings['synchronous_commit']}"
                check.add("asynchronous-standby", what)
        if settings.get("unconfirmed_replicas"):
            what = f"replicas follow ({settings['unconfirmed_replicas']}), and writes go on without them"
            check.add("asynchronous-replica", what)
        if settings.get("journal_mode") == "wal" and settings.get("synchronous") not in (None, "2", "3"):
            check.add("synchronous", f"the file is written with synchronous={settings['synchronous']} in WAL mode")
        if settings.get("persistence") == "none":
            check.add("persistence", "Redis keeps nothing on disk", lost="all records")
        elif settings.get("persistence") == "snapshots":
            check.add("persistence", "Redis keeps snapshots only on disk", lost="the records since the last snapshot")
        if settings.get("persistence_writes") == "err":
            check.add("persistence-failed", "Redis could not write its data to disk the last time it tried")
        used, limit = self._figures.memory or (0, 0)
        if limit and used / limit >= self._limits.memory:
            check.add("memory", f"Redis uses {used / 2**20:,.0f} of {limit / 2**20:,.0f} MB ({used / limit:.0%})")


def _examine_outbox(examination: Examination, store: Store, table: str | None, limits: Limits) -> None:
    """Find messages that are parked or not published. Without ``table``, an outbox that is missing, or that this user
    may not read, is not a finding."""
    backend = store.runtime.backend
    if table is None and not isinstance(backend, OutboxBackend):
        examination.skip(repr(backend), "outbox", "this store cannot hold one")
        return
    with examination.check(f"{backend!r} {table or 'outbox'}", "outbox") as check:
        try:
            backlog, now = ask_outbox(store, table, lambda port: port.stats()), store.now()
        except ConfigurationError as error:
            if table is not None:
                raise
            check.skipped = str(error)
            return
        options = f"--store '{backend!r}'" + (f" --table {table}" if table is not None else "")
        waiting = sum(backlog.counts.get(state, 0) for state in ("pending", "waiting"))
        check.saw = f"{waiting:,} unpublished, none parked"
        parked = backlog.counts.get("parked", 0)
        if parked:
            count = f"{parked:,}{'+' if parked >= backlog.cap else ''}"
            check.add("outbox-parked", f"parked: {count}, which the broker refused for good", options=options)
        if backlog.oldest is not None and (now - backlog.oldest) / 1e6 > limits.outbox:
            what = f"the oldest unpublished message was written {format_age(now, backlog.oldest)}"
            check.add("outbox-lag", what, options=options)
        published, cleaned_at = backlog.counts.get("published", 0), backlog.cleaned_at or 0
        if published >= backlog.cap and (now - cleaned_at) / 1e6 > limits.unswept:
            ended = format_age(now, cleaned_at) if cleaned_at else "never"
            what = f"{published:,} or more published messages are kept; the last clean-up ended {ended}"
            check.add("outbox-growing", what)


def shortest_retention(store: Store) -> tuple[str, float] | None:
    """Return the scope with the shortest retention among some finished records, and that retention in seconds."""
    spans = [
        ((record.expires_at - record.changed_at) / 1e6, record.scope)
        for record in store.list(state="done", limit=_SAMPLE_RECORDS).records
        if record.expires_at is not None
    ]
    return (min(spans)[1], min(spans)[0]) if spans else None
