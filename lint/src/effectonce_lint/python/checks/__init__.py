"""The rules about code, applied to what one consumer does."""

from __future__ import annotations

from effectonce_lint.findings import Finding, Place
from effectonce_lint.python.values import Consumer, Trace, Val

from . import acks, composition, dedup, keys, retention
from .consumer_check import Case


def judged(consumer: Consumer, trace: Trace, settings: dict[str, tuple[Val, Place]]) -> list[Finding]:
    """All that is wrong with ``consumer``."""
    case = Case(consumer, trace, settings)
    verdicts = dedup.judge(case)
    keys.judge(case, verdicts)
    retention.judge(case, verdicts)
    acks.judge(case)
    composition.judge(case)
    return case.findings
