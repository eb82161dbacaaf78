"""Doctor's findings, and the audit log."""

from __future__ import annotations

import time
from typing import Final

from starlette.responses import Response

from effectonce.dashboard.context import RequestContext
from effectonce.dashboard.sources import Sources
from effectonce.doctor import Finding, examine
from effectonce.intents.intents import Intents
from effectonce.worker.worker import Worker

AUDIT_ENTRIES_SHOWN: Final = 200
EXAMINATION_MAX_AGE_S: Final = 5.0
"""One examination answers all requests for this long."""


def show_findings(context: RequestContext) -> Response:
    dashboard = context.dashboard
    with dashboard.doctor_lock:
        last = dashboard.last_examination
        if last is None or time.monotonic() - last[0] > EXAMINATION_MAX_AGE_S:
            last = dashboard.last_examination = (time.monotonic(), examine_sources(context.sources))
    examined_at, findings = last
    return context.render("doctor.html", findings=findings, seconds=time.monotonic() - examined_at)


def examine_sources(sources: Sources) -> list[Finding]:
    """Return doctor's findings, each once: a store that a program uses is examined with the program only."""
    programs: list[Worker | Intents] = [*sources.workers, *dict.fromkeys(sources.intents.values())]
    program_backends = {id(program.store.runtime.backend) for program in programs if program.store is not None}
    is_programs = id(sources.polling_store.runtime.backend) in program_backends
    findings = examine(
        None if is_programs else sources.polling_store,
        broker=sources.broker,
        queues=sources.queues,
        group=sources.group,
        programs=programs,
        outbox=sources.table if sources.outbox is sources.store else None,
    )
    if sources.outbox is not None and sources.outbox is not sources.store:
        of_outbox = examine(sources.outbox, outbox=sources.table)
        findings += [finding for finding in of_outbox if finding not in findings]
    return findings


def show_audit_log(context: RequestContext) -> Response:
    entries = context.sources.audit.recent(AUDIT_ENTRIES_SHOWN)
    return context.render("audit.html", entries=entries, audit_file=context.sources.audit.path)
