"""Doctor's findings and limits, as plain data."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from effectonce.errors import EffectOnceError
from effectonce.values.durations import readable

#: ``error``: a promise is broken. ``warning``: it will be, unless an operator acts. ``note``: worth knowing.
Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


class Finding(Struct, frozen=True, kw_only=True):
    """One problem: what it is, why it matters, and what to run."""

    code: str
    severity: Severity
    about: str  # the store, broker, queue or handler; without secrets
    what: str
    why: str
    run: str


class Limits(Struct, frozen=True, kw_only=True):
    """The thresholds beyond which something is a finding. Times are in seconds."""

    #: between the store's clock and this machine's
    skew: float = 2.0
    #: since the last sweep, or since a relay last cleaned up
    unswept: float = 600.0
    #: since the oldest record should have been deleted
    overdue: float = 3600.0
    #: how long a transaction is open
    transaction: float = 900.0
    #: of a table's rows, the share that is dead, and from how many dead ones on
    dead_share: float = 0.5
    dead_rows: int = 10_000
    #: of the memory that Redis may use
    memory: float = 0.85
    #: how long the oldest message has been waiting in an outbox
    outbox: float = 300.0
    #: how long a record is in doubt, and a dead letter unattended
    unattended: float = 86_400.0


#: By the code of an error: why it matters, and what to run. The message itself names the particulars.
_REMEDIES = {
    "schema-missing": ("Without its tables nothing can be claimed: every delivery fails.", "effectonce migrate {0}"),
    "schema-mismatch": (
        "This release and the tables do not fit: every delivery fails.",
        "effectonce migrate {0}, or install the release that the message names",
    ),
    "unsafe-store": (
        "A record that is lost lets its effect happen again.",
        "change the setting that the message names, then: effectonce doctor {0}",
    ),
    "store-unavailable": (
        "Nothing can be claimed meanwhile: handlers do not run, deliveries are retried later.",
        "check the server and the network, then: effectonce check {0}",
    ),
    "broker-unavailable": (
        "Nothing is delivered and nothing is sent meanwhile.",
        "check the broker and the network, then run doctor again",
    ),
}
_WORKER_REFUSES = "A worker refuses to start like this, since it could not keep its promise."


def finding_from(error: EffectOnceError, about: str) -> Finding:
    """Turn the error of a start-up check into a finding. Its message ends with the remedy, after a semicolon."""
    why, run = _REMEDIES.get(error.code, (_WORKER_REFUSES, ""))
    run = run.format(f"'{about}'") or str(error).rpartition("; ")[2]
    return Finding(code=error.code, severity="error", about=about, what=str(error), why=why, run=run)


def format_span(seconds: float) -> str:
    return readable(max(0, round(seconds * 1e6)))


def format_age(now: int, at: int) -> str:
    """Format how long before ``now`` it was, both in microseconds."""
    return f"{readable(max(0, now - at))} ago"
