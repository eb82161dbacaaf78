"""Doctor's checks of a store: its server, its clock, its sweeper, and what has piled up in it."""

from __future__ import annotations

import time
from collections.abc import Iterator

from effectonce.contracts import OutboxBackend
from effectonce.errors import ConfigurationError, EffectOnceError, UnsafeStore
from effectonce.record import Figures, Stats
from effectonce.relay.relay import ask_outbox
from effectonce.store import Store, require_existing

from .findings import Finding, Limits, finding_from, format_age, format_span

_SAMPLE_SIZE = 200


def examine_store(store: Store, limits: Limits) -> Iterator[Finding]:
    """Examine a store. The work is bounded however much it holds: no table is scanned."""
    try:
        about = repr(store.runtime.backend)
    except ConfigurationError as error:
        yield finding_from(error, "store")
        return
    try:
        require_existing(store.runtime.backend, "make it with: effectonce migrate")
        store.check()
    except EffectOnceError as error:
        yield finding_from(error, about)
        if not isinstance(error, UnsafeStore):
            return
    try:
        yield from _check_clock(store, about, limits)
        now, stats = store.now(), store.stats()
        figures = store.figures(overdue_by=limits.unswept) or Figures()
        since = stats.swept_at or min(
            (record.created_at for record in store.list(limit=_SAMPLE_SIZE).records), default=now
        )
        yield from _check_sweeper(stats, figures, now, since, about, limits)
        yield from _check_in_doubt(stats, now, about, limits)
        yield from _check_server(figures, about, limits)
    except EffectOnceError as error:
        yield finding_from(error, about)


def _check_clock(store: Store, about: str, limits: Limits) -> Iterator[Finding]:
    before = time.time()
    store_time = store.now() / 1e6
    after = time.time()
    # The store read its clock between the two: report only a skew that this cannot explain.
    skew = store_time - min(max(store_time, before), after)
    if abs(skew) > limits.skew:
        word = "ahead of" if skew > 0 else "behind"
        yield Finding(
            code="clock-skew",
            severity="warning",
            about=about,
            what=f"the store's clock is {format_span(abs(skew))} {word} this machine's",
            why="Leases go by the store's clock alone, but providers' key windows, signatures, logs and this command's "
            "ages go by this machine's.",
            run="chronyc makestep on the machine whose clock is wrong (see: timedatectl timesync-status)",
        )


def _check_sweeper(
    stats: Stats, figures: Figures, now: int, unswept_since: int, about: str, limits: Limits
) -> Iterator[Finding]:
    """Check for F37, a sweeper that stopped silently. A new store may not have been swept yet."""
    if (now - unswept_since) / 1e6 > limits.unswept and any(stats.counts.values()):
        yield Finding(
            code="sweeper-stale",
            severity="warning",
            about=about,
            what=f"the last sweep was {format_age(now, unswept_since)}" if stats.swept_at else "it was never swept",
            why="Until a process sweeps, expired records stay, and work whose process died is not shown as in doubt.",
            run=f"effectonce records purge --store '{about}'; then find out why no process sweeps: one that has the "
            "store open does so every minute (its log says sweep_failed), unless sweep_every=None",
        )
    oldest = figures.oldest_overdue
    if oldest is not None and (now - oldest) / 1e6 > limits.overdue:
        count = f"{figures.overdue:,}{' or more' if figures.overdue >= figures.cap else ''}"
        yield Finding(
            code="overdue-records",
            severity="warning",
            about=about,
            what=f"{count} expired records were not deleted, the oldest {format_age(now, oldest)}",
            why="The table grows without end, and everything in it gets slower.",
            run=f"effectonce records purge --store '{about}'",
        )


def _check_in_doubt(stats: Stats, now: int, about: str, limits: Limits) -> Iterator[Finding]:
    count, oldest = stats.counts.get("in_doubt", 0), stats.oldest_in_doubt
    if count and oldest is not None:
        late = (now - oldest) / 1e6 > limits.unattended
        yield Finding(
            code="in-doubt",
            severity="warning" if late else "note",
            about=about,
            what=f"in doubt: {count:,}, the oldest for {format_span((now - oldest) / 1e6)}",
            why="It is unknown whether these effects happened. Their deliveries are refused until an operator decides.",
            run=f"effectonce records list --state in_doubt --store '{about}'; look each up where its effect would be, "
            "then: effectonce records resolve",
        )


def _check_server(figures: Figures, about: str, limits: Limits) -> Iterator[Finding]:
    if figures.transaction_age > limits.transaction:
        yield Finding(
            code="long-transaction",
            severity="warning",
            about=about,
            what=f"a transaction has been open for {format_span(figures.transaction_age)} ({figures.transaction})",
            why="The server keeps every row version since its start: tables grow, and claims get slower.",
            run=f"end it where it comes from; else, for {figures.transaction.partition(',')[0]}: "
            "SELECT pg_terminate_backend(pid), ROLLBACK PREPARED, or KILL in MySQL",
        )
    for table, (live, dead) in figures.rows.items():
        if dead >= limits.dead_rows and dead / (live + dead) >= limits.dead_share:
            yield Finding(
                code="dead-rows",
                severity="warning",
                about=about,
                what=f"{table} has {dead:,} dead rows beside {live:,} live ones",
                why="Autovacuum does not keep up: reads walk over what is dead.",
                run=f"VACUUM (ANALYZE) {table}; then lower its autovacuum_vacuum_scale_factor",
            )
    settings = figures.settings
    if settings.get("autovacuum") == "off":
        yield Finding(
            code="autovacuum-off",
            severity="warning",
            about=about,
            what="the server runs with autovacuum=off",
            why="Every claim and every completion leaves a dead row: the tables grow without end.",
            run="ALTER SYSTEM SET autovacuum = on; SELECT pg_reload_conf()",
        )
    if settings.get("journal_mode") == "wal" and settings.get("synchronous") not in (None, "2", "3"):
        yield Finding(
            code="synchronous",
            severity="warning",
            about=about,
            what=f"the file is written with synchronous={settings['synchronous']} in WAL mode",
            why="A power cut loses commits that were confirmed, and their effects may happen again.",
            run="open it with ?synchronous=full, or without the option",
        )
    yield from _check_redis(figures, about, limits)


def _check_redis(figures: Figures, about: str, limits: Limits) -> Iterator[Finding]:
    settings = figures.settings
    persistence = settings.get("persistence")
    if persistence in ("none", "snapshots"):
        lost = "all records" if persistence == "none" else "the records since the last snapshot"
        yield Finding(
            code="persistence",
            severity="warning",
            about=about,
            what=f"Redis keeps {'nothing' if persistence == 'none' else 'snapshots only'} on disk",
            why=f"A restart loses {lost}, and what is delivered again then runs again.",
            run="CONFIG SET appendonly yes (and write it into redis.conf); for money use a store with durable commits",
        )
    if settings.get("persistence_writes") == "err":
        yield Finding(
            code="persistence-failed",
            severity="error",
            about=about,
            what="Redis could not write its data to disk the last time it tried",
            why="A restart loses records; and with stop-writes-on-bgsave-error every claim is refused.",
            run="free the disk that Redis writes to, then BGSAVE, and look at INFO persistence",
        )
    if figures.memory is not None and figures.memory[1]:
        used, limit = figures.memory
        if used / limit >= limits.memory:
            yield Finding(
                code="memory",
                severity="warning",
                about=about,
                what=f"Redis uses {used / 2**20:,.0f} of {limit / 2**20:,.0f} MB ({used / limit:.0%})",
                why="At its limit it refuses claims (noeviction): nothing is doubled, but nothing runs.",
                run="raise maxmemory (CONFIG SET maxmemory), or shorten retention=",
            )


# -- the outbox beside it


def examine_outbox(store: Store, table: str | None, limits: Limits) -> Iterator[Finding]:
    """Find parked keys, and messages that are not published. Without ``table``, an outbox that is missing, or that this
    user may not read, is not a finding."""
    backend = store.runtime.backend
    if table is None and not isinstance(backend, OutboxBackend):
        return
    about = f"{backend!r} {table or 'outbox'}"
    options = f"--store '{backend!r}'" + (f" --table {table}" if table is not None else "")
    try:
        backlog, now = ask_outbox(store, table, lambda port: port.stats()), store.now()
    except ConfigurationError as error:
        if table is not None:
            yield finding_from(error, about)
        return
    except EffectOnceError as error:
        yield finding_from(error, about)
        return
    parked = backlog.counts.get("parked", 0)
    if parked:
        yield Finding(
            code="outbox-parked",
            severity="warning",
            about=about,
            what=f"parked: {parked:,}{'+' if parked >= backlog.cap else ''}, which the broker refused for good",
            why="They are never published by themselves, and messages with the same ordering key wait behind them.",
            run=f"effectonce outbox list {options}; then: effectonce outbox unpark (or discard)",
        )
    if backlog.oldest is not None and (now - backlog.oldest) / 1e6 > limits.outbox:
        yield Finding(
            code="outbox-lag",
            severity="warning",
            about=about,
            what=f"the oldest unpublished message was written {format_age(now, backlog.oldest)}",
            why="No relay runs, it cannot reach the broker, or it does not keep up.",
            run=f"effectonce outbox stats {options}; and make sure that a relay runs: effectonce relay",
        )
    published, cleaned = backlog.counts.get("published", 0), backlog.cleaned_at or 0
    if published >= backlog.cap and (now - cleaned) / 1e6 > limits.unswept:
        yield Finding(
            code="outbox-growing",
            severity="warning",
            about=about,
            what=f"{published:,} or more published messages are kept; the last clean-up ended "
            + (format_age(now, cleaned) if cleaned else "never"),
            why="A relay deletes what it has published, and old rows of the inbox; without it both grow without end.",
            run="make sure that a relay runs, and that its keep= is short: effectonce relay --keep 1h",
        )


# -- how long records are really kept


def shortest_retention(store: Store) -> tuple[str, float] | None:
    """Return the scope with the shortest retention among some finished records, and that retention in seconds."""
    spans = [
        ((record.expires_at - record.changed_at) / 1e6, record.scope)
        for record in store.list(state="done", limit=_SAMPLE_SIZE).records
        if record.expires_at is not None
    ]
    return (min(spans)[1], min(spans)[0]) if spans else None
