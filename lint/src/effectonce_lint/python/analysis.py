"""Checks one Python file: finds its consumers, traces each, and runs the rules on the trace."""

from __future__ import annotations

import sys

from msgspec import Struct

from effectonce_lint.coverage import Handler, Skip, checker_failure
from effectonce_lint.findings import Finding, Place

from .checks import check_consumer
from .consumer_trace import trace_consumer
from .consumers import ConsumerScanner
from .modules import Module
from .project import Project
from .values import DetectedConsumer

_RECURSION_LIMIT = 6000
"""Python's own recursion limit while a tree is walked: a long chain of `a + b + c` is as deep as it is long."""


class ModuleResult(Struct, kw_only=True):
    """What was found in one file, and how much of it was checked."""

    findings: list[Finding]
    handlers: list[Handler]
    skipped: list[Skip]


def check_module(project: Project, module: Module) -> ModuleResult:
    """Check the consumers that ``module`` defines or registers. One that cannot be checked costs the others nothing."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, _RECURSION_LIMIT))
    try:
        scanner = ConsumerScanner(project, module)
        consumers = scanner.scan()
        findings, skipped = scanner.failures, scanner.skipped
        for consumer in consumers:
            try:
                trace = trace_consumer(project, consumer)
                if trace.broken_off:
                    skipped.append(Skip(subject=consumer.subject, reason=trace.broken_off, place=consumer.at))
                findings += check_consumer(consumer, trace, scanner.settings)
            except Exception as error:  # a defect of the checker must not hide what is in the other consumers
                findings.append(checker_failure(consumer.subject, consumer.at, error))
    finally:
        sys.setrecursionlimit(limit)
    return ModuleResult(findings=_deduplicate(findings), handlers=list(map(_handler_of, consumers)), skipped=skipped)


def _handler_of(consumer: DetectedConsumer) -> Handler:
    framework = "" if consumer.only_rules else consumer.family
    return Handler(subject=consumer.subject, framework=framework, place=consumer.at)


def _deduplicate(findings: list[Finding]) -> list[Finding]:
    """One finding for each rule and place, though two consumers may lead there."""
    first: dict[tuple[str, Place], Finding] = {}
    for finding in findings:
        first.setdefault((finding.rule, finding.place), finding)
    return sorted(first.values(), key=lambda finding: (*finding.place.start, finding.rule))
