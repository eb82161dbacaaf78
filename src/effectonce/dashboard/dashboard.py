"""`Dashboard`: what all requests share, from the sources to the templates.

Views run in threads, several at once. What they change here is one step on a dict, or under a lock.
"""

from __future__ import annotations

import hashlib
import threading
import time
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import jinja2
from starlette.responses import HTMLResponse, Response

from effectonce.display import formatting
from effectonce.display.sagas import format_saga_state
from effectonce.display.state_filters import STATE_FILTERS
from effectonce.doctor import DoctorReport
from effectonce.errors import show
from effectonce.telemetry.cached_probe import CachedProbe
from effectonce.values.durations import format_span

from .access import Access
from .poller import Poller
from .sources import Sources
from .view_pool import ViewPool

FINDINGS_MAX_AGE_S: Final = 5.0
DASHBOARD_FOLDER: Final = Path(__file__).parent


class Dashboard:
    """One dashboard: made once, shared by all requests."""

    def __init__(self, sources: Sources, access: Access) -> None:
        self.sources = sources
        self.access = access
        self.poller = Poller(sources)
        self.view_pool = ViewPool()
        #: (tone, text) messages by session id, shown on the session's next page.
        self.flashes: dict[str, list[tuple[str, str]]] = {}
        self.redrive_lock = threading.Lock()  # held by the one redrive that may run at a time
        #: When doctor ran (monotonic), and what it found. All requests of the next `FINDINGS_MAX_AGE_S` share them.
        self.doctor_report: CachedProbe[tuple[float, DoctorReport]] = CachedProbe(
            "doctor", lambda: (time.monotonic(), sources.examine()), FINDINGS_MAX_AGE_S
        )
        self.templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(DASHBOARD_FOLDER / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self.templates.filters.update(
            line=show,
            error=formatting.format_error,
            time=formatting.format_time,
            moment=formatting.format_moment,
            near=formatting.format_near,
            ago=formatting.format_ago,
            span=format_span,
            count=formatting.format_count,
            state=formatting.format_state,
            tone=formatting.tone_of,
            saga_state=format_saga_state,
        )
        self.templates.globals.update(static=_static_url, link=link, filters=STATE_FILTERS)

    def render(self, template: str, status: int = 200, **values: Any) -> Response:
        return HTMLResponse(self.templates.get_template(template).render(**values), status)


def link(path: str, **query: str | None) -> str:
    """Return ``path`` with the fields that have a value as its query: scopes and keys may hold any character."""
    fields = {name: value for name, value in query.items() if value}
    return f"{path}?{urlencode(fields)}" if fields else path


@cache
def _static_url(name: str) -> str:
    """Return the address of a static file. It changes with the file's content, so browsers may cache it."""
    version = hashlib.sha256((DASHBOARD_FOLDER / "static" / name).read_bytes()).hexdigest()[:12]
    return f"/static/{name}?v={version}"
