"""Sagas: what is on its way, and one as a graph."""

from __future__ import annotations

from starlette.responses import Response

from effectonce.dashboard import formatting as reading
from effectonce.dashboard.context import Ask, link
from effectonce.dashboard.graph import draw
from effectonce.dashboard.sources import ROWS
from effectonce.dashboard.timeline import saga_log, timeline
from effectonce.record import Page

from .records import choices

WHICH = ("open", "in_doubt", "all")


def listed(ask: Ask) -> Response:
    names = [scope for scope in ask.sources.scopes if scope.startswith("saga/")]
    scope = ask.text("scope") or (names[0] if names else "")
    which = ask.one_of("which", WHICH, "open")
    page = Page([])
    if scope:
        page = ask.sources.store.list(
            scope=scope,
            unfinished=which == "open",
            state="in_doubt" if which == "in_doubt" else None,
            limit=ROWS,
            cursor=ask.text("cursor") or None,
        )
    rows = [(record, saga_log(ask.sources, record)) for record in page.records if record.note is not None]
    following = link("/sagas", scope=scope, which=which, cursor=page.cursor) if page.cursor is not None else ""
    return ask.render(
        "sagas.html", names=names, scope=scope, which=which, rows=rows, next=following, now=ask.sources.store.now()
    )


def one(ask: Ask) -> Response:
    scope, key = ask.text("scope"), ask.text("key")
    record = ask.sources.record(scope, key)
    log = saga_log(ask.sources, record) if record is not None and record.note is not None else None
    if record is None or log is None:
        text = "There is no such saga: it has expired, never was, or its log is sealed."
        return ask.render("problem.html", 404, code="no saga", text=text)
    saga = ask.sources.sagas.get(scope)
    undoable = None if saga is None else {name for name, step in saga.steps.items() if step.undo is not None}
    return ask.render(
        "saga.html",
        record=record,
        log=log,
        drawing=draw(log, record.state, undoable),
        results={entry.name: reading.brief(entry.result) for entry in log.entries} if ask.session.acts else {},
        input=reading.as_json(log.input) if ask.session.acts else "",
        moments=timeline(ask.sources, record),
        now=ask.sources.store.now(),
        **choices(ask, record),
    )
