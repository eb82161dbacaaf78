"""Findings of doctor: what one says, the limits beyond which there is one, and how checks collect them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import Struct

from effectonce.errors import EffectOnceError
from effectonce.values.durations import span_text

from .advice import ADVICE, SEVERITIES, DoctorSeverity

_WORKER_REFUSES = "A worker refuses to start like this, since it could not keep its promise."


class DoctorFinding(Struct, frozen=True, kw_only=True):
    """One problem: what it is, why it matters, and what to run."""

    code: str
    severity: DoctorSeverity
    about: str  # the store, broker, queue or handler; without secrets
    what: str
    why: str
    run: str


class Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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


class Findings:
    """Collects findings. The texts of a code come from `ADVICE`; the checks say what is wrong, and with what."""

    def __init__(self) -> None:
        self._findings: list[DoctorFinding] = []

    def add(
        self,
        code: str,
        about: str,
        what: str,
        *,
        severity: DoctorSeverity | None = None,
        why: str = "",
        **words: object,
    ) -> None:
        """Add a finding, with the severity, reason and command of its code. ``words`` are filled into the command."""
        advice = ADVICE[code]
        self._findings.append(
            DoctorFinding(
                code=code,
                severity=severity or advice.severity,
                about=about,
                what=what,
                why=(why or advice.why).format(**words),
                run=advice.run.format(about=about, **words),
            )
        )

    def add_error(self, error: EffectOnceError, about: str) -> None:
        """Add the error of a start-up check. Where its code has no advice, its message ends with the remedy."""
        if error.code in ADVICE:
            self.add(error.code, about, str(error))
        else:
            remedy = str(error).rpartition("; ")[2]
            self._findings.append(
                DoctorFinding(
                    code=error.code, severity="error", about=about, what=str(error), why=_WORKER_REFUSES, run=remedy
                )
            )

    @contextmanager
    def catch(self, about: str) -> Iterator[None]:
        """Add an `EffectOnceError` that the block raises as a finding, and continue after the block."""
        try:
            yield
        except EffectOnceError as error:
            self.add_error(error, about)

    def worst_first(self) -> list[DoctorFinding]:
        """Return the findings without duplicates, the worst first."""
        return sorted(dict.fromkeys(self._findings), key=lambda finding: SEVERITIES.index(finding.severity))


def format_span(seconds: float) -> str:
    return span_text(max(0, round(seconds * 1e6)))


def format_age(now: int, at: int) -> str:
    """Format how long before ``now`` it was, both in microseconds."""
    return f"{span_text(max(0, now - at))} ago"
