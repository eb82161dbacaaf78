"""Advice for each kind of finding: how severe it is, why it matters, and what to run."""

from __future__ import annotations

from typing import Literal, NamedTuple

#: ``error``: a promise is broken. ``warning``: it will be, unless an operator acts. ``note``: worth knowing.
DoctorSeverity = Literal["error", "warning", "note"]
SEVERITIES: tuple[DoctorSeverity, ...] = ("error", "warning", "note")


class Advice(NamedTuple):
    why: str
    run: str  # a command; {about} is the store, broker or queue, and the check fills in other words in braces
    severity: DoctorSeverity = "warning"


#: By the code of a finding; that of a start-up check is the code of its error.
ADVICE = {
    # errors of start-up checks: the message names the particulars
    "schema-missing": Advice(
        "Without its tables nothing can be claimed: every delivery fails.",
        "effectonce migrate --store '{about}'",
        "error",
    ),
    "schema-mismatch": Advice(
        "This release and the tables do not fit: every delivery fails.",
        "effectonce migrate --store '{about}', or install the release that the message names",
        "error",
    ),
    "unsafe-store": Advice(
        "A record that is lost lets its effect happen again.",
        "change the setting that the message names, then: effectonce doctor --store '{about}'",
        "error",
    ),
    "store-unavailable": Advice(
        "Until it answers, nothing can be claimed: handlers do not run, and deliveries are retried later.",
        "check the server and the network, then: effectonce check --store '{about}'",
        "error",
    ),
    "broker-unavailable": Advice(
        "Until it answers, nothing is delivered and nothing is sent.",
        "check the broker and the network, then run doctor again",
        "error",
    ),
    # a store: its clock, its sweeper, its operators
    "clock-skew": Advice(
        "Leases go by the store's clock alone, but providers' key windows, signatures, logs and this command's ages go "
        "by this machine's.",
        "chronyc makestep on the machine whose clock is wrong (see: timedatectl timesync-status)",
    ),
    "sweeper-stale": Advice(
        "Until a process sweeps, expired records stay, and work whose process died is not shown as in doubt.",
        "effectonce records purge --store '{about}'; then find out why no process sweeps: one that has the store open "
        "does so every minute (its log says sweep_failed), unless sweep_every=None",
    ),
    "overdue-records": Advice(
        "The table grows without end, and everything in it gets slower.", "effectonce records purge --store '{about}'"
    ),
    "in-doubt": Advice(
        "It is unknown whether these effects happened. Nothing runs them until an operator decides.",
        "effectonce records list --state in-doubt --store '{about}'; look each up where its effect would be, then: "
        "effectonce records resolve (scope intents/…: intents resolve; scope saga/…: sagas resolve)",
        "note",
    ),
    # a store: its server
    "long-transaction": Advice(
        "While it is open, the server keeps every old version of a row: tables grow, and claims get slower.",
        "end it in the program that opened it; else, for {transaction}: SELECT pg_terminate_backend(pid), ROLLBACK "
        "PREPARED, or KILL in MySQL",
    ),
    "dead-rows": Advice(
        "Autovacuum does not keep up: every read skips dead rows.",
        "VACUUM (ANALYZE) {table}; then lower its autovacuum_vacuum_scale_factor",
    ),
    "autovacuum-off": Advice(
        "Every claim and every completion leaves a dead row: the tables grow without end.",
        "ALTER SYSTEM SET autovacuum = on; SELECT pg_reload_conf()",
    ),
    "asynchronous-standby": Advice(
        "A failover loses the latest commits that were confirmed: transactions of messages, which the broker does not "
        "deliver again, and records, whose effects may happen again.",
        "on the primary, and on what may become it: ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (*)'; "
        "ALTER SYSTEM SET synchronous_commit = on; SELECT pg_reload_conf()",
    ),
    "asynchronous-replica": Advice(
        "A failover loses the records that no replica had yet, and their effects may happen again.",
        "CONFIG SET min-replicas-to-write 1 and min-replicas-max-lag 1 bound how much that is; for money use a store "
        "with synchronous commits",
        "note",
    ),
    "synchronous": Advice(
        "A power cut loses commits that were confirmed, and their effects may happen again.",
        "open it with ?synchronous=full, or without the option",
    ),
    "persistence": Advice(
        "A restart loses {lost}. Messages of theirs that are delivered again run again.",
        "CONFIG SET appendonly yes (and write it into redis.conf); for money use a store with durable commits",
    ),
    "persistence-failed": Advice(
        "A restart loses records; and with stop-writes-on-bgsave-error every claim is refused.",
        "free the disk that Redis writes to, then BGSAVE, and look at INFO persistence",
        "error",
    ),
    "memory": Advice(
        "At its limit it refuses claims (noeviction): nothing is doubled, but nothing runs.",
        "raise maxmemory (CONFIG SET maxmemory), or shorten retention=",
    ),
    # an outbox
    "outbox-parked": Advice(
        "They are never published by themselves, and messages with the same ordering key wait behind them.",
        "effectonce outbox list {options}; then: effectonce outbox unpark (or discard)",
    ),
    "outbox-lag": Advice(
        "No relay runs, it cannot reach the broker, or it does not keep up.",
        "effectonce outbox stats {options}; and make sure that a relay runs: effectonce relay",
    ),
    "outbox-growing": Advice(
        "A relay deletes what it has published, and old rows of the inbox; without it both grow without end.",
        "make sure that a relay runs, and that its keep= is short: effectonce relay --keep 1h",
    ),
    # a broker
    "experimental": Advice(
        "Its tests run against a stand-in: the service itself may behave differently.",
        "try deliveries, redeliveries and dead letters against your own {about} before you rely on it",
        "note",
    ),
    "sync-interval": Advice(
        "If all servers of a stream lose power, messages that were confirmed since the last write are lost, even with "
        "replicas.",
        "set sync_interval: always in the jetstream block of the server's configuration; this check sees it with "
        "?monitoring=http://host:8222 in the URL",
    ),
    "retention": Advice(
        "A duplicate that is delivered after its record has expired runs again.",
        "set retention= to more than {horizon}, with time for retries and redrives",
        "error",
    ),
    "dead-letters": Advice(
        "Each is a message whose effect did not happen, or only in part.",
        "effectonce dlq list MODULE:WORKER QUEUE; then: effectonce dlq redrive --dry-run",
        "note",
    ),
}
