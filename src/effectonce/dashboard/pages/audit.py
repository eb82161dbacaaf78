"""The audit log: what operators did, newest first."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from effectonce.dashboard.context import RequestContext

AUDIT_ENTRIES_SHOWN: Final = 200


def show_audit_log(context: RequestContext) -> Response:
    log = context.sources.audit
    return context.render("audit.html", entries=log.recent(AUDIT_ENTRIES_SHOWN), audit_file=log.path)
