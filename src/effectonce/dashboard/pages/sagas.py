"""Sagas: the list, and one saga as a graph."""

from __future__ import annotations

from starlette.responses import Response

from effectonce.dashboard import formatting
from effectonce.dashboard.context import RequestContext, link
from effectonce.dashboard.graph import draw
from effectonce.dashboard.sources import PAGE_SIZE
from effectonce.dashboard.timeline import saga_log, timeline
from effectonce.record import Page

from .records import decision_options

WHICH = ("open", "in_doubt", "all")


def show_list(context: RequestContext) -> Response:
    names = [scope for scope in context.sources.scopes if scope.startswith("saga/")]
    scope = context.text("scope") or (names[0] if names else "")
    which = context.one_of("which", WHICH, "open")
    page = Page([])
    if scope:
        page = context.sources.store.list(
            scope=scope,
            unfinished=which == "open",
            state="in_doubt" if which == "in_doubt" else None,
            limit=PAGE_SIZE,
            cursor=context.text("cursor") or None,
        )
    rows = [(record, saga_log(context.sources, record)) for record in page.records if record.note is not None]
    next_page = link("/sagas", scope=scope, which=which, cursor=page.cursor) if page.cursor is not None else ""
    return context.render(
        "sagas.html", names=names, scope=scope, which=which, rows=rows, next=next_page, now=context.sources.store.now()
    )


def show_one(context: RequestContext) -> Response:
    scope, key = context.text("scope"), context.text("key")
    record = context.sources.record(scope, key)
    log = saga_log(context.sources, record) if record is not None and record.note is not None else None
    if record is None or log is None:
        text = "There is no such saga: it has expired, never existed, or its log is sealed."
        return context.render("problem.html", 404, code="no saga", text=text)
    saga = context.sources.sagas.get(scope)
    undoable = None if saga is None else {name for name, step in saga.steps.items() if step.undo is not None}
    acts = context.session.acts
    return context.render(
        "saga.html",
        record=record,
        log=log,
        drawing=draw(log, record.state, undoable),
        results={entry.name: formatting.brief(entry.result) for entry in log.entries} if acts else {},
        input=formatting.as_json(log.input) if acts else "",
        moments=timeline(context.sources, record),
        now=context.sources.store.now(),
        **decision_options(context, record),
    )
