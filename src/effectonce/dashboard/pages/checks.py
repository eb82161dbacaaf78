"""Doctor's findings, and the audit log."""

from __future__ import annotations

import time
from typing import Final

from starlette.responses import Response

from effectonce.dashboard.context import RequestContext
from effectonce.dashboard.view_pool import VIEW_TIMEOUT_S

AUDIT_ENTRIES_SHOWN: Final = 200


def show_findings(context: RequestContext) -> Response:
    examined_at, findings = context.dashboard.examination.refresh().result(VIEW_TIMEOUT_S)
    return context.render("doctor.html", findings=findings, seconds=time.monotonic() - examined_at)


def show_audit_log(context: RequestContext) -> Response:
    entries = context.sources.audit.recent(AUDIT_ENTRIES_SHOWN)
    return context.render("audit.html", entries=entries, audit_file=context.sources.audit.path)
