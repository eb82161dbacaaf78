"""Sagas: the list, and one saga as a graph."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from effectonce.dashboard.context import RequestContext
from effectonce.dashboard.saga_graph import draw
from effectonce.dashboard.sources import PAGE_SIZE
from effectonce.display.formatting import format_json
from effectonce.display.sagas import list_saga_part_views
from effectonce.record import Page
from effectonce.sagas.log import SagaLog
from effectonce.values.scopes import kind_of_scope

from .records import decision_options

FILTERS: Final = ("open", "in_doubt", "all")


def show_list(context: RequestContext) -> Response:
    names = [scope for scope in context.sources.scopes if kind_of_scope(scope) == "saga"]
    scope = context.text("scope") or (names[0] if names else "")
    which = context.one_of("which", FILTERS, "open")
    page, cursor = Page([]), context.text("cursor") or None
    if scope:
        page = context.sources.store.list(
            scope=scope,
            unfinished=which == "open",
            state="in_doubt" if which == "in_doubt" else None,
            limit=PAGE_SIZE,
            cursor=cursor,
            newest_first=True,
        )
    return context.render(
        "sagas.html",
        names=names,
        scope=scope,
        which=which,
        rows=[(record, context.sources.log(record)) for record in page.records if record.note is not None],
        partial=page.partial,
        next=context.next_page(page.cursor, scope=scope, which=which),
        later=cursor is not None,
        now=context.sources.store.now(),
    )


def show_one(context: RequestContext) -> Response:
    scope = context.text("scope")
    record = context.sources.store.get(scope, context.text("key"))
    log = context.sources.log(record) if record is not None else None
    if record is None or not isinstance(log, SagaLog):
        text = "There is no such saga: it has expired, never existed, or its log is sealed."
        return context.render("problem.html", 404, code="no saga", text=text)
    saga = context.sources.sagas.get(scope)
    undoable = None if saga is None else {name for name, step in saga.steps.items() if step.undo is not None}
    return context.render(
        "saga.html",
        record=record,
        log=log,
        drawing=draw(log, record.state, undoable),
        saga_parts=list_saga_part_views(log, record.state),
        input=format_json(log.input) if context.session.can_act else "",
        moments=context.sources.timeline(record),
        now=context.sources.store.now(),
        **decision_options(context.sources, record),
    )
