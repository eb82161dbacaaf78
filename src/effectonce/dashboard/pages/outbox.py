"""The outbox: what waits to leave, and keys that are parked."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from effectonce.contracts.outbox import OutboxBacklog, OutboxPage, OutboxState
from effectonce.dashboard.context import Ask, link
from effectonce.errors import InvalidOption

STATES: Final[tuple[OutboxState, ...]] = ("parked", "waiting", "pending", "published")


def rows(ask: Ask) -> Response:
    state: OutboxState = ask.one_of("state", STATES, "parked")
    there = ask.sources.outbox is not None
    backlog = ask.sources.outbox_stats() if there else OutboxBacklog(counts={}, cap=0)
    page = ask.sources.outbox_rows(state, ask.text("cursor") or None) if there else OutboxPage([])
    following = link("/outbox", state=state, cursor=page.cursor) if page.cursor is not None else ""
    return ask.render(
        "outbox.html", there=there, state=state, known=STATES, backlog=backlog, entries=page.entries, next=following
    )


def unpark(ask: Ask) -> Response:
    """Let parked messages go again: those that were chosen, or all."""
    chosen = ask.form.get("seq", ())
    if not all(each.isdecimal() and len(each) < 19 for each in chosen):
        raise InvalidOption("a message of an outbox is known by its number")
    seqs = [int(each) for each in chosen]
    everything = ask.text("all") == "yes"
    if bool(seqs) == everything:
        raise InvalidOption("choose the messages that are to go again, or all of them")
    with ask.audited("outbox unpark", ask.sources.outbox_name, detail=" ".join(map(str, seqs)) or "all"):
        count = ask.sources.unpark(None if everything else seqs)
    return ask.go("/outbox", f"{count} unparked: the relay sends them next, and what waited behind them follows.")
