"""What every page works with: the sources, who asks, and the way to answer."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

import jinja2
from msgspec import Struct
from starlette.responses import HTMLResponse, RedirectResponse, Response

from effectonce.doctor import Finding
from effectonce.errors import InvalidOption

from .access import Access, Session
from .formatting import FILTERS, STATES
from .poller import Watcher
from .sources import Sources
from .view_pool import Patience

T = TypeVar("T", bound=str)

HERE: Final = Path(__file__).parent

MENU: Final = (
    ("/", "Overview"),
    ("/records", "Records"),
    ("/doubts", "In doubt"),
    ("/sagas", "Sagas"),
    ("/outbox", "Outbox"),
    ("/letters", "Dead letters"),
    ("/doctor", "Doctor"),
    ("/audit", "Audit"),
)


class Desk:
    """One dashboard: made once, shared by all requests."""

    def __init__(self, sources: Sources, access: Access) -> None:
        self.sources = sources
        self.access = access
        self.watcher = Watcher(sources)
        self.patience = Patience()
        self.words: dict[str, list[tuple[str, str]]] = {}  # what a session is to be told on its next page
        self.redriving = threading.Lock()
        self.examining = threading.Lock()
        self.examined: tuple[float, list[Finding]] = (-1e9, [])  # when, and what doctor found
        loader = jinja2.FileSystemLoader(HERE / "templates")
        self.pages = jinja2.Environment(
            loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )
        self.pages.filters.update(FILTERS)
        self.pages.globals.update(static=_static, link=link, menu=MENU, states=STATES)

    def render(self, template: str, status: int = 200, **values: Any) -> Response:
        return HTMLResponse(self.pages.get_template(template).render(**values), status)


class Ask(Struct, frozen=True):
    """One request of somebody who has logged in."""

    desk: Desk
    session: Session
    path: str
    cookie: str  # its name
    query: Mapping[str, str]
    form: Mapping[str, Sequence[str]]

    @property
    def sources(self) -> Sources:
        return self.desk.sources

    def text(self, name: str) -> str:
        """A field of the form, or of the query; '' where it is missing."""
        given = self.form.get(name)
        return given[0] if given else self.query.get(name, "")

    def one_of(self, name: str, known: Sequence[T], default: T) -> T:
        given = self.text(name)
        for each in known:
            if each == given:
                return each
        if given:
            raise InvalidOption(f"{name} is one of {', '.join(known)}")
        return default

    def audited(self, action: str, target: str, detail: str = "", place: str = "") -> AbstractContextManager[None]:
        """What happens inside is written down, before and after, with who did it."""
        return self.sources.audit.doing(action, target, by=self.session.signature, detail=detail, place=place)

    def render(self, template: str, status: int = 200, **values: Any) -> Response:
        desk = self.desk
        sample = desk.watcher.sample(0)
        doubts = sample.stats.counts.get("in_doubt", 0) if sample is not None and sample.stats is not None else 0
        return desk.render(
            template,
            status,
            session=self.session,
            acts=self.session.acts,
            csrf=desk.access.csrf(self.session),
            words=desk.words.pop(self.session.id, []),
            path=self.path,
            doubts=doubts,
            store=repr(desk.sources.store.runtime.backend),
            **values,
        )

    def go(self, to: str, word: str, tone: str = "good") -> Response:
        """Lead on to another page, where ``word`` is said."""
        self.desk.words.setdefault(self.session.id, []).append((tone, word))
        return RedirectResponse(to, 303)


def link(path: str, **query: str | None) -> str:
    """A path with those of the fields that have a value. Scopes and keys may hold anything, so they are no paths."""
    given = {name: value for name, value in query.items() if value}
    return f"{path}?{urlencode(given)}" if given else path


@cache
def _static(name: str) -> str:
    """The address of a file, which changes with its content."""
    version = hashlib.sha256((HERE / "static" / name).read_bytes()).hexdigest()[:12]
    return f"/static/{name}?v={version}"
