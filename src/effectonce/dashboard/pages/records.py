"""Records: searching for them, and one with its timeline."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from effectonce.dashboard import formatting as reading
from effectonce.dashboard.context import Ask, link
from effectonce.dashboard.timeline import intent_log, kind_of, saga_log, timeline
from effectonce.errors import InvalidKey, InvalidOption
from effectonce.record import Record, State

STATES: tuple[State, ...] = ("claimed", "done", "failed", "in_doubt", "free")


def state_in(ask: Ask) -> State | None:
    chosen = ask.one_of("state", ("", *STATES), "")
    return next((state for state in STATES if state == chosen), None)


def found(ask: Ask) -> Response:
    key, scope, state = ask.text("key").strip(), ask.text("scope"), state_in(ask)
    problem = ""
    records: list[Record] = []
    cursor = None
    try:
        page = ask.sources.search(key, scope, state, ask.text("cursor") or None)
        records, cursor = page.records, page.cursor
    except (InvalidOption, InvalidKey) as error:
        problem = str(error)
    return ask.render(
        "records.html",
        records=records,
        now=ask.sources.store.now(),
        key=key,
        scope=scope,
        state=state or "",
        problem=problem,
        next=link("/records", key=key, scope=scope, state=state, cursor=cursor) if cursor is not None else "",
        later=bool(ask.text("cursor")),
        scopes=ask.sources.scopes,
        prefixes=ask.sources.store.capabilities.ordered,
    )


def one(ask: Ask) -> Response:
    scope, key = ask.text("scope"), ask.text("key")
    record = ask.sources.record(scope, key)
    if record is None:
        text = "There is no such record: it has expired, or never was."
        return ask.render("problem.html", 404, code="no record", text=text)
    kind = kind_of(scope)
    return ask.render(
        "record.html",
        record=record,
        kind=kind,
        now=ask.sources.store.now(),
        moments=timeline(ask.sources, record),
        intent=_intent(ask, record) if ask.session.acts and kind == "intent" else None,
        result=reading.body(record.result) if ask.session.acts else "",
        failure=reading.failure(record) if record.state == "failed" else None,
        **choices(ask, record),
    )


def _intent(ask: Ask, record: Record) -> tuple[str, str] | None:
    """The key that an intent was made for, and its request as it was frozen."""
    log = intent_log(ask.sources, record) if record.note is not None else None
    return (log.key, reading.body(log.request)) if log is not None else None


def choices(ask: Ask, record: Record) -> dict[str, Any]:
    """What an operator can say about a record in doubt, and what is to be known before."""
    sources, kind = ask.sources, kind_of(record.scope)
    words: tuple[str, ...] = ("done", "retry", "abandon")
    undoing, hint = False, ""
    if kind == "saga":
        log = saga_log(sources, record) if record.note is not None else None
        undoing = log is not None and log.undoing
        if record.scope not in sources.sagas or log is None:
            words, hint = ("abandon",), "Start the dashboard with --saga MODULE:SAGA to decide its step instead."
        elif not undoing:  # a step: it did not happen, or, where the saga has not turned around, may run again
            words = ("done", "not_done", *(("retry",) if log.phase == "running" else ()), "abandon")
    elif kind == "intent" and record.scope not in sources.intents:
        hint = "Start the dashboard with --intents MODULE:INTENTS, and a result is checked against its type."
    elif kind == "guard" and sources.privacy is not None:
        hint = "This store is private: only its program can seal a result, so none is asked for."
    takes_result = "done" in words and not undoing and not (kind == "guard" and sources.privacy is not None)
    return {"words_for": words, "undoing": undoing, "hint": hint, "takes_result": takes_result}
