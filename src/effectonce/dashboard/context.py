"""The context of a view: the dashboard, which all requests share, and one request with its form and its session."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

import jinja2
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from effectonce.display import formatting
from effectonce.display.sagas import format_saga_state
from effectonce.doctor import Finding
from effectonce.errors import InvalidOption, show
from effectonce.telemetry.cached_probe import CachedProbe

from .access import Access, LoginSession
from .poller import Poller
from .sources import Sources
from .view_pool import ViewPool

T = TypeVar("T", bound=str)

EXAMINATION_MAX_AGE_S: Final = 5.0
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
        self.redrive_lock = threading.Lock()
        #: When doctor ran (monotonic), and its findings, for all requests in the next seconds.
        self.examination: CachedProbe[tuple[float, list[Finding]]] = CachedProbe(
            "doctor", lambda: (time.monotonic(), sources.examine()), EXAMINATION_MAX_AGE_S
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
            time=formatting.format_time,
            moment=formatting.format_moment,
            ago=formatting.format_ago,
            span=formatting.format_span,
            count=formatting.format_count,
            state=formatting.format_state,
            saga_state=format_saga_state,
        )
        self.templates.globals.update(static=_static_url, link=link, states=formatting.STATE_WORDS)

    def render(self, template: str, status: int = 200, **values: Any) -> Response:
        return HTMLResponse(self.templates.get_template(template).render(**values), status)


class RequestContext(Struct, frozen=True):
    """One request of a visitor who has logged in."""

    dashboard: Dashboard
    session: LoginSession
    request: Request
    form: Mapping[str, Sequence[str]]

    @property
    def sources(self) -> Sources:
        return self.dashboard.sources

    def text(self, name: str) -> str:
        """Return a field of the form, or of the query; '' where it is missing."""
        values = self.form.get(name)
        return values[0] if values else self.request.query_params.get(name, "")

    def one_of(self, name: str, known: Sequence[T], default: T) -> T:
        """Return a field whose value is one of ``known``; ``default`` where it is missing or empty."""
        value = self.text(name)
        for option in known:
            if option == value:
                return option
        if value:
            raise InvalidOption(f"{name} is one of {', '.join(known)}")
        return default

    def audit(self, action: str, target: str, detail: str = "", place: str = "") -> AbstractContextManager[None]:
        """Write what happens inside to the audit log, before and after, with the name of the operator."""
        return self.sources.audit.doing(action, target, by=self.session.audit_name, detail=detail, place=place)

    def render(self, template: str, status: int = 200, **values: Any) -> Response:
        """Render a page in the frame that every page has: the menu, the visitor's name and the pending messages."""
        dashboard = self.dashboard
        sample = dashboard.poller.sample(wait=0)
        in_doubt = sample.stats.counts.get("in_doubt", 0) if sample is not None and sample.stats is not None else 0
        return dashboard.render(
            template,
            status,
            session=self.session,
            can_act=self.session.can_act,
            csrf=self.session.csrf,
            flashes=dashboard.flashes.pop(self.session.id, []),
            path=self.request.url.path,
            in_doubt=in_doubt,
            store=repr(dashboard.sources.store.runtime.backend),
            **values,
        )

    def next_page(self, cursor: str | None, *, field: str = "cursor", **query: str | None) -> str:
        """Return the address of the page that begins at ``cursor``; "" if there is none."""
        return link(self.request.url.path, **query, **{field: cursor}) if cursor is not None else ""

    def redirect(self, to: str, message: str, tone: str = "good") -> Response:
        """Redirect to another page, which shows ``message``."""
        self.dashboard.flashes.setdefault(self.session.id, []).append((tone, message))
        return RedirectResponse(to, 303)


def link(path: str, **query: str | None) -> str:
    """Return ``path`` with the fields that have a value as its query: scopes and keys may hold any character."""
    fields = {name: value for name, value in query.items() if value}
    return f"{path}?{urlencode(fields)}" if fields else path


@cache
def _static_url(name: str) -> str:
    """Return the address of a static file. It changes with the file's content, so browsers may cache it."""
    version = hashlib.sha256((DASHBOARD_FOLDER / "static" / name).read_bytes()).hexdigest()[:12]
    return f"/static/{name}?v={version}"
