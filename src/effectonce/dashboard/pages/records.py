"""Records: the search, and one record with its timeline."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from effectonce.dashboard import formatting
from effectonce.dashboard.context import RequestContext, link
from effectonce.dashboard.timeline import intent_log, kind_of, saga_log, timeline
from effectonce.errors import InvalidKey, InvalidOption
from effectonce.record import Record, State

STATES: tuple[State, ...] = ("claimed", "done", "failed", "in_doubt", "free")


def _chosen_state(context: RequestContext) -> State | None:
    chosen = context.one_of("state", ("", *STATES), "")
    return next((state for state in STATES if state == chosen), None)


def search(context: RequestContext) -> Response:
    key, scope, state = context.text("key").strip(), context.text("scope"), _chosen_state(context)
    problem = ""
    records: list[Record] = []
    cursor = None
    try:
        page = context.sources.search(key, scope, state, context.text("cursor") or None)
        records, cursor = page.records, page.cursor
    except (InvalidOption, InvalidKey) as error:
        problem = str(error)
    return context.render(
        "records.html",
        records=records,
        now=context.sources.store.now(),
        key=key,
        scope=scope,
        state=state or "",
        problem=problem,
        next=link("/records", key=key, scope=scope, state=state, cursor=cursor) if cursor is not None else "",
        later=bool(context.text("cursor")),
        scopes=context.sources.scopes,
        prefixes=context.sources.store.capabilities.ordered,
    )


def show_one(context: RequestContext) -> Response:
    scope, key = context.text("scope"), context.text("key")
    record = context.sources.record(scope, key)
    if record is None:
        text = "There is no such record: it has expired, or never existed."
        return context.render("problem.html", 404, code="no record", text=text)
    kind = kind_of(scope)
    return context.render(
        "record.html",
        record=record,
        kind=kind,
        now=context.sources.store.now(),
        moments=timeline(context.sources, record),
        intent=_intent(context, record) if context.session.acts and kind == "intent" else None,
        result=formatting.body(record.result) if context.session.acts else "",
        failure=formatting.failure(record) if record.state == "failed" else None,
        **decision_options(context, record),
    )


def _intent(context: RequestContext, record: Record) -> tuple[str, str] | None:
    """Return the key that an intent was made for, and its frozen request."""
    log = intent_log(context.sources, record) if record.note is not None else None
    return (log.key, formatting.body(log.request)) if log is not None else None


def decision_options(context: RequestContext, record: Record) -> dict[str, Any]:
    """Return the outcomes that an operator can choose for a record in doubt, and what the form shows beside them."""
    sources, kind = context.sources, kind_of(record.scope)
    outcomes: tuple[str, ...] = ("done", "retry", "abandon")
    undoing, hint = False, ""
    if kind == "saga":
        log = saga_log(sources, record) if record.note is not None else None
        undoing = log is not None and log.undoing
        if record.scope not in sources.sagas or log is None:
            outcomes, hint = ("abandon",), "Start the dashboard with --saga MODULE:SAGA to decide its step instead."
        elif not undoing:  # a step may run again only while the saga has not turned around to compensate
            outcomes = ("done", "not_done", *(("retry",) if log.phase == "running" else ()), "abandon")
    elif kind == "intent" and record.scope not in sources.intents:
        hint = "Start the dashboard with --intents MODULE:INTENTS to have results checked against their type."
    elif kind == "guard" and sources.privacy is not None:
        hint = "This store is private: only its program can seal a result, so you cannot give one here."
    takes_result = "done" in outcomes and not undoing and not (kind == "guard" and sources.privacy is not None)
    return {"outcomes": outcomes, "undoing": undoing, "hint": hint, "takes_result": takes_result}
