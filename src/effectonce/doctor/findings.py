"""What doctor says, as plain data."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from effectonce.errors import EffectOnceError
from effectonce.values.durations import readable

#: ``error``: a promise is not kept. ``warning``: it will not be, if nobody does anything. ``note``: worth knowing.
Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


class Finding(Struct, frozen=True, kw_only=True):
    """One thing that is not as it should be: what, why it matters, and what to run."""

    code: str
    severity: Severity
    about: str  # the store, broker, queue or handler; without secrets
    what: str
    why: str
    run: str


class Limits(Struct, frozen=True, kw_only=True):
    """From where on something is a finding. Times are in seconds."""

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


#: code of an error: (why it matters, what to run), where the message itself names the particulars
_REFUSALS = {
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
        "Nothing can be claimed meanwhile: handlers do not run, deliveries come again later.",
        "see to the server and the way to it, then: effectonce check {0}",
    ),
    "broker-unavailable": (
        "Nothing is delivered and nothing is sent meanwhile.",
        "see to the broker and the way to it, then run doctor again",
    ),
}
_REFUSED = "A worker refuses to start like this, since it could not keep its promise."


def refusal(error: EffectOnceError, about: str) -> Finding:
    """What a start-up check has refused. Its message ends with the remedy, after a semicolon."""
    why, run = _REFUSALS.get(error.code, (_REFUSED, ""))
    run = run.format(f"'{about}'") or str(error).rpartition("; ")[2]
    return Finding(code=error.code, severity="error", about=about, what=str(error), why=why, run=run)


def span(seconds: float) -> str:
    return readable(max(0, round(seconds * 1e6)))


def ago(now: int, at: int) -> str:
    """How long before ``now`` it was, both in microseconds."""
    return f"{readable(max(0, now - at))} ago"
