"""The queue of records that are in doubt, and an operator's decision on one of them."""

from __future__ import annotations

from typing import Any, Final

from msgspec import DecodeError, json
from starlette.responses import Response

from effectonce.dashboard.context import RequestContext
from effectonce.dashboard.dashboard import link
from effectonce.display.formatting import format_target
from effectonce.display.state_filters import STATE_FILTERS
from effectonce.errors import CorruptRecord, InvalidOption, NotInDoubt, show
from effectonce.guard.options import UNFINISHED_RETENTION_US
from effectonce.http.operator_results import parse_decided_result
from effectonce.record import Page, Record
from effectonce.sagas.log import SagaLog
from effectonce.store import DEFAULT_RETENTION
from effectonce.values.durations import Duration
from effectonce.values.scopes import kind_of_scope

from .records import decision_options

INTENT_RETENTION: Final = "30d"
"""How long an intent that was decided without its program is kept: the default of `Intents.operation`."""

#: What the next page says, by the operator's decision.
CONFIRMATIONS: Final = {
    "done": "It is done: duplicates get its result.",
    "not_done": "It did not happen: the saga's next resume compensates what is done.",
    "retry": "It may run again, as a new generation. If its worker gave it up, redrive its dead letter now.",
    "abandon": "It is given up, and counts as failed.",
}


def show_queue(context: RequestContext) -> Response:
    scope, cursor = context.text("scope").strip(), context.text("cursor") or None
    page, problem = Page([]), ""
    try:
        page = context.sources.search("", scope, STATE_FILTERS["in_doubt"], cursor)
    except InvalidOption as error:
        problem = str(error)
    return context.render(
        "in_doubt.html",
        rows=[(record, kind_of_scope(record.scope), context.sources.log(record)) for record in page.records],
        scope=scope,
        scopes=context.sources.scopes,
        problem=problem,
        next=context.next_page(page.cursor, scope=scope),
        later=cursor is not None,
        now=context.sources.store.now(),
    )


def resolve(context: RequestContext) -> Response:
    """Apply an operator's decision to one record. The decision is in the audit log before it is applied."""
    scope, key, outcome = context.text("scope"), context.text("key"), context.text("outcome")
    record = context.sources.store.get(scope, key)
    if record is None:
        raise NotInDoubt("there is no such record any more; nothing was changed")
    allowed = decision_options(context.sources, record)["outcomes"]
    if outcome not in allowed:
        raise InvalidOption(f"choose one of: {', '.join(allowed)}")
    result = _parse_result(context.text("result")) if outcome == "done" else ...
    place = repr(context.sources.store.runtime.backend)
    with context.audit("records resolve", format_target(scope, key), detail=outcome, place=place):
        _apply_decision(context, record, outcome, result)
    record_page = link(
        "/saga" if kind_of_scope(scope) == "saga" else "/record", back=context.back, scope=scope, key=key
    )
    return context.redirect(record_page, CONFIRMATIONS[outcome])


def _apply_decision(context: RequestContext, record: Record, outcome: Any, result: Any) -> None:
    """Decide through the record's program where it is known: it checks the result, and resumes its saga."""
    scope, key, operator = record.scope, record.key, context.session.audit_name
    saga, intents = context.sources.sagas.get(scope), context.sources.intents.get(scope)
    if saga is not None:
        log = context.sources.log(record)
        if not isinstance(log, SagaLog):
            raise CorruptRecord(f"the log of saga {show(key)} cannot be read; upgrade this process")
        saga.resolve(log.id, outcome, result=None if result is ... else result, who=operator)
    elif intents is not None:
        intents.resolve(intents.id_of(record), outcome, result=result, who=operator)
    else:
        if outcome == "done":
            result = parse_decided_result(key, result)
        retention = _retention(scope, outcome)
        context.sources.store.resolve(scope, key, outcome, result=result, retention=retention, who=operator)


def _retention(scope: str, outcome: str) -> Duration:
    """Return how long a record that is decided without its program is kept."""
    if kind_of_scope(scope) == "guard":
        return DEFAULT_RETENTION
    if outcome == "retry":  # unfinished: its program needs it, however late it resumes
        return UNFINISHED_RETENTION_US / 1e6
    return INTENT_RETENTION


def _parse_result(text: str) -> Any:
    """Decode the result that an operator typed as JSON. ``...`` where the field is empty: the result is not known."""
    if not text.strip():
        return ...
    try:
        return json.decode(text)
    except (DecodeError, UnicodeError) as error:
        raise InvalidOption(f"the result is not JSON: {error}; put text in quotes") from error
