"""The outbox: messages that wait to be published, and keys that are parked."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from effectonce.contracts.outbox import OutboxBacklog, OutboxPage, OutboxState
from effectonce.dashboard.context import RequestContext
from effectonce.errors import InvalidOption

MAX_SEQ_DIGITS: Final = 18  # fits 64 bits
STATES: Final[tuple[OutboxState, ...]] = ("parked", "waiting", "pending", "published")


def show_rows(context: RequestContext) -> Response:
    state: OutboxState = context.one_of("state", STATES, "parked")
    backlog, page = OutboxBacklog(counts={}, cap=0), OutboxPage([])
    if context.sources.outbox is not None:
        backlog = context.sources.outbox_stats()
        page = context.sources.outbox_rows(state, context.text("cursor") or None)
    return context.render(
        "outbox.html",
        exists=context.sources.outbox is not None,
        state=state,
        outbox_states=STATES,
        backlog=backlog,
        entries=page.entries,
        next=context.next_page(page.cursor, state=state),
        later=bool(context.text("cursor")),
    )


def unpark(context: RequestContext) -> Response:
    """Let the relay publish parked messages again: those that were chosen, or all."""
    chosen = context.form.get("seq", ())
    if not all(number.isdecimal() and len(number) <= MAX_SEQ_DIGITS for number in chosen):
        raise InvalidOption("a message in the outbox is identified by its number")
    seqs = [int(number) for number in chosen]
    everything = context.text("all") == "yes"
    if bool(seqs) == everything:
        raise InvalidOption("choose the messages to unpark, or all of them")
    with context.audit("outbox unpark", context.sources.outbox_name, detail=" ".join(map(str, seqs)) or "all"):
        count = context.sources.unpark(None if everything else seqs)
    return context.redirect("/outbox", f"{count} unparked: the relay sends them next, then what waited behind them.")
