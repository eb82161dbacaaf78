"""Records: the search, and one record with its timeline."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from effectonce.dashboard.context import RequestContext
from effectonce.dashboard.sources import Sources
from effectonce.display.formatting import format_failure, format_failure_place, format_stored
from effectonce.display.state_filters import STATE_FILTERS
from effectonce.errors import InvalidKey, InvalidOption
from effectonce.intents.logged_intent import LoggedIntent
from effectonce.record import Page, Record
from effectonce.sagas.log import SagaLog
from effectonce.values.scopes import kind_of_scope

ORDERS: Final = ("newest", "stored")
"""The orders of the list: ``stored``, the store's own, reaches every record of a store that cannot sort them all."""


def search(context: RequestContext) -> Response:
    key, scope = context.text("key").strip(), context.text("scope").strip()
    state = context.one_of("state", tuple(STATE_FILTERS), "")
    order = context.one_of("order", ORDERS, "newest")
    cursor = context.text("cursor") or None
    page, problem = Page([]), ""
    try:
        page = context.sources.search(key, scope, STATE_FILTERS.get(state), cursor, newest_first=order == "newest")
    except (InvalidOption, InvalidKey) as error:
        problem = str(error)
    return context.render(
        "records.html",
        rows=[(record, context.sources.business_key(record)) for record in page.records],
        partial=page.partial,
        order=order if order != "newest" else None,
        now=context.sources.store.now(),
        key=key,
        scope=scope,
        state=state,
        problem=problem,
        next=context.next_page(
            page.cursor, key=key, scope=scope, state=state, order=order if order != "newest" else None
        ),
        later=cursor is not None,
        scopes=context.sources.scopes,
        prefixes=context.sources.store.capabilities.ordered,
    )


def show_one(context: RequestContext) -> Response:
    scope = context.text("scope")
    record = context.sources.store.get(scope, context.text("key"))
    if record is None:
        text = "There is no such record: it has expired, or never existed."
        return context.render("problem.html", 404, code="no record", text=text)
    can_act, log = context.session.can_act, context.sources.log(record)
    request = (log.key, format_stored(log.request)) if can_act and isinstance(log, LoggedIntent) else None
    return context.render(
        "record.html",
        record=record,
        kind=kind_of_scope(scope),
        now=context.sources.store.now(),
        moments=context.sources.timeline(record),
        intent=request,
        result=format_stored(record.result) if can_act else "",
        failure=format_failure(record) if record.state == "failed" or record.error is not None else None,
        raised_at=format_failure_place(record),
        **decision_options(context.sources, record),
    )


def decision_options(sources: Sources, record: Record) -> dict[str, Any]:
    """Return the outcomes that an operator can choose for a record in doubt, and what the form shows beside them."""
    kind = kind_of_scope(record.scope)
    sealed = kind == "guard" and sources.privacy is not None
    outcomes: tuple[str, ...] = ("done", "retry", "abandon")
    undoing, hint = False, ""
    if kind == "saga":
        log = sources.log(record)
        undoing = isinstance(log, SagaLog) and log.compensation_in_doubt
        if record.scope not in sources.sagas or not isinstance(log, SagaLog):
            outcomes, hint = ("abandon",), "Start the dashboard with --saga MODULE:SAGA to decide its step instead."
        elif log.phase == "running":
            outcomes = ("done", "not_done", "retry", "abandon")
        elif not undoing:  # a saga that has turned around to compensate runs no step again
            outcomes = ("done", "not_done", "abandon")
    elif kind == "intent" and record.scope not in sources.intents:
        hint = "Start the dashboard with --intents MODULE:INTENTS to have results checked against their type."
    elif sealed:
        hint = "This store is encrypted: only its program can write a result, so you cannot enter one here."
    takes_result = "done" in outcomes and not undoing and not sealed
    return {"outcomes": outcomes, "undoing": undoing, "hint": hint, "takes_result": takes_result}
