"""Doctor's findings, and what it checked."""

from __future__ import annotations

import time

from starlette.responses import Response

from effectonce.dashboard.context import RequestContext
from effectonce.dashboard.view_pool import VIEW_TIMEOUT_S


def show_findings(context: RequestContext) -> Response:
    examined_at, report = context.dashboard.doctor_report.refresh().result(VIEW_TIMEOUT_S)
    return context.render(
        "doctor.html",
        findings=report.findings,
        passed=[check for check in report.checks if not check.findings],
        seconds=time.monotonic() - examined_at,
    )
