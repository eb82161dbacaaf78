"""The inbox: messages that were handled in a transaction (mode T), and one of them with its result."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from effectonce.dashboard.context import RequestContext
from effectonce.dashboard.sources import PAGE_SIZE
from effectonce.display.formatting import format_stored
from effectonce.errors import InvalidOption
from effectonce.inbox.admin import InboxAdmin, InboxPage, InboxState

STATES: Final[tuple[InboxState, ...]] = ("handled", "expired", "unfinished")


def show_list(context: RequestContext) -> Response:
    """List the messages in one state, those that expire last first, by scope and age."""
    state: InboxState = context.one_of("state", STATES, "handled")
    scope = context.text("scope")
    newer_than, older_than = context.text("newer_than").strip(), context.text("older_than").strip()
    cursor = context.text("cursor") or None
    page, now, problem = InboxPage([]), 0, ""
    store = context.sources.inbox
    if store is not None:
        with InboxAdmin(store, context.sources.inbox_table) as inbox:
            now = inbox.now()
            try:
                page = inbox.list(
                    state,
                    scope=scope or None,
                    older_than=older_than or None,
                    newer_than=newer_than or None,
                    limit=PAGE_SIZE,
                    cursor=cursor,
                )
            except InvalidOption as error:
                problem = str(error)
    filters = {"scope": scope, "newer_than": newer_than, "older_than": older_than}
    return context.render(
        "inbox.html",
        exists=store is not None,
        inbox_states=STATES,
        state=state,
        filters=filters,
        entries=page.entries,
        now=now,
        problem=problem,
        next=context.next_page(page.cursor, state=state, **filters),
        later=cursor is not None,
    )


def show_one(context: RequestContext) -> Response:
    store = context.sources.inbox
    scope, key = context.text("scope"), context.text("key")
    entry, now = None, 0
    if store is not None:
        with InboxAdmin(store, context.sources.inbox_table) as inbox:
            entry, now = inbox.show(scope, key), inbox.now()
    if entry is None:
        text = "There is no such message in the inbox: it was purged, or never handled. Its next delivery runs."
        return context.render("problem.html", 404, code="no message", text=text)
    result = format_stored(entry.result) if context.session.can_act else ""
    return context.render("inbox_message.html", entry=entry, now=now, result=result)
