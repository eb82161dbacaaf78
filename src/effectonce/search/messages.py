"""Finding messages: handled in an inbox, waiting in an outbox, given up as dead letters."""

from __future__ import annotations

from typing import Final

from effectonce.contracts.outbox import OutboxEntry
from effectonce.core.privacy import looks_hidden
from effectonce.dead_letters.queue import DeadLetterDetails, DeadLetterQueue
from effectonce.display.formatting import format_error
from effectonce.inbox.admin import InboxAdmin, InboxEntry
from effectonce.message import Message
from effectonce.relay.relay import ask_outbox
from effectonce.store import Store
from effectonce.values.key_term import KeyTerm

from .matches import Match, MatchedBy

MAX_OUTBOX_ROWS: Final = 20_000
MAX_DEAD_LETTERS: Final = 2000
HIDDEN_INBOX_KEYS: Final = "its keys look hidden, as private= of an inbox does: a search cannot find those"


def find_in_inbox(store: Store, table: str | None, term: KeyTerm, limit: int) -> tuple[list[Match], str]:
    """Find rows of the inbox by key. Returns them, and where this did not look."""
    with InboxAdmin(store, table) as inbox:
        found, newest = inbox.find(term, limit), inbox.list(limit=1).entries
    gaps = [found.gap, HIDDEN_INBOX_KEYS if any(looks_hidden(entry.key) for entry in newest) else ""]
    return [_inbox_match(entry) for entry in found.entries], "; ".join(filter(None, gaps))


def find_in_outbox(store: Store, table: str | None, term: KeyTerm, limit: int) -> tuple[list[Match], str]:
    """Find rows of the outbox by key, message id or ordering key, among the newest."""
    found = ask_outbox(store, table, lambda port: port.find(term, MAX_OUTBOX_ROWS, limit))
    gap = "" if found.is_complete else f"only the {MAX_OUTBOX_ROWS:,} newest messages were searched"
    return [_outbox_match(entry, term) for entry in found.entries], gap


def find_in_dead_letters(queue: DeadLetterQueue, name: str, term: KeyTerm, limit: int) -> tuple[list[Match], str]:
    """Find dead letters by key, message id or ordering key, among the oldest. No broker has an index of these."""
    matches: list[Match] = []
    looked = 0

    def look(dead: DeadLetterDetails) -> bool:
        """Collect ``dead`` if it matches. True ends the walk."""
        nonlocal looked
        looked += 1
        matched_by = _matched_by(dead, term)
        if matched_by is not None:
            matches.append(_dead_letter_match(dead, name, matched_by))
        return looked >= MAX_DEAD_LETTERS or len(matches) >= limit

    queue.list(select=look, limit=1)
    gap = f"only the {MAX_DEAD_LETTERS:,} oldest dead letters were searched" if looked >= MAX_DEAD_LETTERS else ""
    return matches, gap


def _inbox_match(entry: InboxEntry) -> Match:
    return Match(
        kind="inbox",
        scope=entry.scope,
        key=entry.key,
        state=entry.state,
        by="key",
        changed_at=entry.handled_at,
    )


def _outbox_match(entry: OutboxEntry, term: KeyTerm) -> Match:
    by: MatchedBy = "ordering key"
    if term.matches(entry.id):
        by = "key"
    elif term.matches(entry.message_id):
        by = "message id"
    return Match(
        kind="outbox",
        scope=entry.destination,
        key=entry.id,
        state=entry.state,
        by=by,
        changed_at=entry.published_at or entry.created_at,
        message_id=entry.message_id,
        id=str(entry.seq),
        detail=entry.error or "",
    )


def _matched_by(dead: DeadLetterDetails, term: KeyTerm) -> MatchedBy | None:
    message: Message[object] | None = dead.message
    if term.matches(dead.key) or (message is not None and term.matches(message.key)):
        return "key"
    if message is not None and term.matches(message.id):
        return "message id"
    if message is not None and term.matches(message.ordering_key):
        return "ordering key"
    return None


def _dead_letter_match(dead: DeadLetterDetails, name: str, by: MatchedBy) -> Match:
    return Match(
        kind="dead letter",
        scope=name,
        key=dead.key,
        state=dead.cause.why,
        by=by,
        changed_at=round(dead.cause.given_up_at * 1e6) or None,
        message_id=dead.message.id if dead.message is not None else "",
        id=dead.id,
        detail=format_error(dead.cause.error, dead.cause.text),
    )
