"""`RequestContext`: one request, with its form, its session, and the dashboard that answers it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, TypeVar

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from effectonce.errors import InvalidOption

from .access import LoginSession
from .dashboard import Dashboard, link
from .sources import Sources

Choice = TypeVar("Choice", bound=str)

#: The pages that list something. A page about one thing links back to the list that it was opened from.
LIST_PATHS: Final = ("/records", "/in-doubt", "/sagas", "/dead-letters")


class RequestContext(Struct, frozen=True):
    """One request of a visitor who has logged in. It belongs to the thread of its view."""

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

    def one_of(self, name: str, known: Sequence[Choice], default: Choice) -> Choice:
        """Return a field whose value is one of ``known``; ``default`` where it is missing or empty."""
        value = self.text(name)
        for option in known:
            if option == value:
                return option
        if value:
            raise InvalidOption(f"{name} is one of {', '.join(known)}")
        return default

    @property
    def here(self) -> str | None:
        """The address of this list with its filters and its page, for the links to what it lists; None without any."""
        url = self.request.url
        return f"{url.path}?{url.query}" if url.query and url.path in LIST_PATHS else None

    @property
    def back(self) -> str | None:
        """The address of the list that this page was opened from; None if it is not known. A forged one leads to no
        other site: it counts only if it is a list of this dashboard."""
        address = self.text("back")
        return address if address.partition("?")[0] in LIST_PATHS else None

    def audit(self, action: str, target: str, detail: str = "", place: str = "") -> AbstractContextManager[None]:
        """Write what happens inside to the audit log, before and after, with the name of the operator."""
        return self.sources.audit.record_action(action, target, by=self.session.audit_name, detail=detail, place=place)

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
            here=self.here,
            back=self.back,
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
