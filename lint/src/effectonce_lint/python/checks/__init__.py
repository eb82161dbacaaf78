"""The rules about code, applied to the trace of one consumer."""

from __future__ import annotations

from effectonce_lint.findings import Finding, Place
from effectonce_lint.python.values import DetectedConsumer, Trace, Value

from . import acks, composition, dedup, keys, retention
from .consumer_check import ConsumerCheck


def check_consumer(consumer: DetectedConsumer, trace: Trace, settings: dict[str, tuple[Value, Place]]) -> list[Finding]:
    """Run all rules on the trace of ``consumer``."""
    case = ConsumerCheck(consumer, trace, settings)
    verdicts = dedup.check_dedup(case)
    keys.check_keys(case, verdicts)
    retention.check_retention(case, verdicts)
    acks.check_acks(case)
    composition.check_composition(case)
    return case.findings
