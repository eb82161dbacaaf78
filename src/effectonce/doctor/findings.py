"""What doctor reports: its checks with their findings, the limits beyond which there is one, and how they are
collected."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from msgspec import Struct

from effectonce.errors import EffectOnceError
from effectonce.values.durations import format_span, span_text

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


#: The severity of the worst finding; ``skipped``: it could not be checked.
CheckResult = Literal["ok", "note", "warning", "error", "skipped"]


class DoctorCheck(Struct, frozen=True, kw_only=True):
    """One thing that doctor looked at, or could not look at."""

    about: str  # the store, broker, queue or handler; without secrets
    name: str
    result: CheckResult
    detail: str  # what it saw; if it was skipped: why
    findings: tuple[DoctorFinding, ...] = ()


class DoctorReport(Struct, frozen=True):
    """Every check of one run of doctor, in the order in which they were made."""

    checks: list[DoctorCheck]

    @property
    def findings(self) -> list[DoctorFinding]:
        """The findings of all checks, each once, the worst first."""
        findings = dict.fromkeys(finding for check in self.checks for finding in check.findings)
        return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


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


class OpenCheck:
    """A check while it is made: it says what it saw, and collects its findings.

    The texts of a finding come from `ADVICE` by its code; the check says what is wrong, and with what.
    """

    def __init__(self, about: str, name: str) -> None:
        self.about = about
        self.name = name
        self.saw = ""
        self.skipped = ""  # why it could not be made
        self.failed = False  # an error ended it
        self._findings: list[DoctorFinding] = []

    def add(
        self, code: str, what: str, *, severity: DoctorSeverity | None = None, why: str = "", **words: object
    ) -> None:
        """Add a finding, with the severity, reason and command of its code. ``words`` are filled into the command."""
        advice = ADVICE[code]
        self._findings.append(
            DoctorFinding(
                code=code,
                severity=severity or advice.severity,
                about=self.about,
                what=what,
                why=(why or advice.why).format(**words),
                run=advice.run.format(about=self.about, **words),
            )
        )

    def add_error(self, error: EffectOnceError) -> None:
        """Add the error of a start-up check. Where its code has no advice, its message ends with the remedy."""
        if error.code in ADVICE:
            self.add(error.code, str(error))
        else:
            remedy = str(error).rpartition("; ")[2]
            self._findings.append(
                DoctorFinding(
                    code=error.code,
                    severity="error",
                    about=self.about,
                    what=str(error),
                    why=_WORKER_REFUSES,
                    run=remedy,
                )
            )

    def result(self) -> DoctorCheck:
        """Return what the check has found."""
        findings = tuple(self._findings)
        if findings:
            worst: CheckResult = min((finding.severity for finding in findings), key=SEVERITIES.index)
            detail = "; ".join(finding.what for finding in findings)
        else:
            worst, detail = ("skipped", self.skipped) if self.skipped else ("ok", self.saw)
        return DoctorCheck(about=self.about, name=self.name, result=worst, detail=detail, findings=findings)


class Examination:
    """Collects the checks of one run of doctor."""

    def __init__(self) -> None:
        self._checks: list[DoctorCheck] = []

    @contextmanager
    def check(self, about: str, name: str) -> Iterator[OpenCheck]:
        """Make a check. An `EffectOnceError` that the block raises is a finding, and ends this check alone."""
        check = OpenCheck(about, name)
        try:
            yield check
        except EffectOnceError as error:
            check.failed = True
            check.add_error(error)
        self._checks.append(check.result())

    def skip(self, about: str, name: str, why: str) -> None:
        """Report that a check cannot be made."""
        self._checks.append(DoctorCheck(about=about, name=name, result="skipped", detail=why))

    def report(self) -> DoctorReport:
        """Return all checks, each once."""
        return DoctorReport(list(dict.fromkeys(self._checks)))


def format_setting(seconds: float) -> str:
    """Format a span that users set, as they write it."""
    return span_text(max(0, round(seconds * 1e6)))


def format_seconds(seconds: float) -> str:
    """Format a span that was measured, roughly."""
    return format_span(max(0.0, seconds * 1e6))


def format_age(now: int, at: int) -> str:
    """Format how long before ``now`` it was, both in microseconds."""
    return f"{format_span(max(0, now - at))} ago"
