"""Doctor's findings."""

from __future__ import annotations

import time

from starlette.responses import Response

from effectonce.dashboard.context import RequestContext
from effectonce.dashboard.view_pool import VIEW_TIMEOUT_S


def show_findings(context: RequestContext) -> Response:
    examined_at, findings = context.dashboard.doctor_findings.refresh().result(VIEW_TIMEOUT_S)
    return context.render("doctor.html", findings=findings, seconds=time.monotonic() - examined_at)
