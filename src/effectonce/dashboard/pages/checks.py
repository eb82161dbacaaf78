"""Doctor's findings, and the audit log."""

from __future__ import annotations

import time
from typing import Final

from starlette.responses import Response

from effectonce.dashboard.context import Ask
from effectonce.dashboard.sources import Sources
from effectonce.doctor import Finding, examine
from effectonce.intents.intents import Intents
from effectonce.worker.worker import Worker

SHOWN: Final = 200
GOOD_FOR: Final = 5.0
"""Seconds for which one examination answers everybody."""


def doctor(ask: Ask) -> Response:
    desk = ask.desk
    with desk.examining:
        if time.monotonic() - desk.examined[0] > GOOD_FOR:
            desk.examined = (time.monotonic(), examined(ask.sources))
        at, findings = desk.examined
    counts = {
        severity: sum(each.severity == severity for each in findings) for severity in ("error", "warning", "note")
    }
    return ask.render("doctor.html", findings=findings, counts=counts, seconds=time.monotonic() - at)


def examined(sources: Sources) -> list[Finding]:
    """What doctor finds, each once: the store is not asked again for every program that uses it."""
    programs: list[Worker | Intents] = [*sources.workers, *dict.fromkeys(sources.intents.values())]
    theirs = {id(program.store.runtime.backend) for program in programs if program.store is not None}
    alone = sources.watched if id(sources.watched.runtime.backend) not in theirs else None
    findings = examine(
        alone,
        broker=sources.broker,
        queues=sources.queues,
        group=sources.group,
        programs=programs,
        outbox=sources.table if sources.outbox is sources.store else None,
    )
    if sources.outbox is not None and sources.outbox is not sources.store:
        findings += [each for each in examine(sources.outbox, outbox=sources.table) if each not in findings]
    return findings


def audit(ask: Ask) -> Response:
    entries = ask.sources.audit.recent(SHOWN)
    return ask.render("audit.html", entries=entries, kept_in=ask.sources.audit.path)
