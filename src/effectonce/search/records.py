"""Finding the records of a key without knowing their scopes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from effectonce.core.privacy import Privacy, looks_hidden
from effectonce.display.formatting import format_error, format_failure, format_state
from effectonce.errors import show
from effectonce.record import Page, Record, State
from effectonce.store import Store
from effectonce.values.key_term import KeyTerm
from effectonce.values.scopes import kind_of_scope

from .intents import MAX_LOGS, find_intents
from .matches import Match, MatchKind

MAX_SCOPES: Final = 200
MAX_LISTED_RECORDS: Final = 2000
"""How many records a search reads in a store that keeps them in no order."""
PAGE_SIZE: Final = 500
FIRST_PAGE_SIZE: Final = 5
"""How many records are read behind a key, in each scope: in most scopes none of them matches."""
MAX_PAGES_PER_SCOPE: Final = 5
_EXPIRED_IN_THE_WAY: Final = (
    "expired records that wait for a sweep are in the way: effectonce records purge deletes them"
)
HIDDEN_KEYS: Final = (
    "some keys look hidden, as private= does: those are found only with their secret, by their whole key (name the "
    "program that has it: --worker MODULE:WORKER)"
)
AFTER_SCOPE: Final = "\x01"
"""Appended to a scope's name, it sorts after all of the scope's records."""

_KINDS: Final[dict[str, MatchKind]] = {"guard": "record", "intent": "intent", "saga": "saga"}


def discover_scopes(store: Store, limit: int = MAX_SCOPES) -> tuple[list[str], bool]:
    """Find up to ``limit`` scopes with one query each, in a store that keeps records in order. Returns them, and
    whether these are all."""
    firsts, is_complete = _first_records(store, limit)
    return [record.scope for record in firsts], is_complete


def _first_records(store: Store, limit: int) -> tuple[list[Record], bool]:
    """Find the first record of each scope, as `discover_scopes` does."""
    firsts: list[Record] = []
    after = ("", "")
    while len(firsts) < limit:
        page = store.list(limit=1, after=after)
        for _ in range(MAX_PAGES_PER_SCOPE):
            if page.records or page.cursor is None:
                break
            page = store.list(limit=1, after=after, cursor=page.cursor)  # behind expired ones that wait for a sweep
        if not page.records:
            return firsts, page.cursor is None
        firsts.append(page.records[0])
        after = (firsts[-1].scope + AFTER_SCOPE, "")
    return firsts, not store.list(limit=1, after=after).records


def find_records(
    store: Store, terms: Sequence[KeyTerm], scopes: Iterable[str], privacy: Privacy | None, limit: int
) -> tuple[list[Match], str]:
    """Find records whose key is one of ``terms``, in ``scopes`` and in those that the store has. Returns them, and
    where this did not look."""
    found: dict[tuple[str, str], Record] = {}
    keys: dict[tuple[str, str], str] = {}  # of intents: the key of each, as its log has it
    gaps: list[str] = []
    if store.capabilities.ordered:
        firsts, is_complete = _first_records(store, MAX_SCOPES)
        if not is_complete:
            behind = "" if len(firsts) == MAX_SCOPES else f"; {_EXPIRED_IN_THE_WAY}"
            gaps.append(f"only the first {len(firsts)} scopes were searched{behind}")
    else:
        firsts, gap = _list_scopes(store, terms, found)
        gaps += [gap] if gap else []
    if privacy is None and any(looks_hidden(record.key) for record in firsts):
        gaps.append(HIDDEN_KEYS)
    for scope in sorted({*scopes, *(record.scope for record in firsts)}):
        for term in terms:
            records, is_complete = _find_in_scope(store, scope, term, privacy, limit - len(found))
            found.update(((scope, record.key), record) for record in records)
            if not is_complete:
                gaps.append(f"not all of {show(scope)} was searched; {_EXPIRED_IN_THE_WAY}")
        if kind_of_scope(scope) == "intent":
            intents, is_complete = find_intents(store, scope, terms, privacy)
            for record, log in intents:
                found[scope, record.key], keys[scope, record.key] = record, log.key
            if not is_complete:
                gaps.append(f"only the logs of the first {MAX_LOGS:,} intents of {show(scope)} were read")
        if len(found) >= limit:
            break
    now = store.now()
    matches = [_match(record, keys.get(identity, record.key), now) for identity, record in found.items()]
    return matches[:limit], "; ".join(gaps)


def _find_in_scope(
    store: Store, scope: str, term: KeyTerm, privacy: Privacy | None, limit: int
) -> tuple[list[Record], bool]:
    """Find the records of one scope. Returns them, and whether expired ones hid no others."""
    stored = [store.get(scope, key) for key in _stored_keys(scope, term, privacy)]
    records = [record for record in stored if record is not None]
    if not store.capabilities.ordered or limit <= len(records):
        return records, True
    cursor, size = None, FIRST_PAGE_SIZE
    for _ in range(MAX_PAGES_PER_SCOPE):
        page = list_longer_keys(store, scope, term, limit=size, cursor=cursor)
        records += page.records
        if page.cursor is None or len(records) >= limit:
            return records, True
        cursor, size = page.cursor, limit
    return records, False


def list_longer_keys(
    store: Store, scope: str, term: KeyTerm, *, limit: int, cursor: str | None, state: State | None = None
) -> Page:
    """List a page of the records of one scope whose keys begin with ``term`` and are longer, in a store that keeps
    records in order. Its cursor is None where the term ends."""
    first, _ = term.ranges[-1]
    page = store.list(scope=scope, state=state, after=(scope, first), limit=limit, cursor=cursor)
    matching = [record for record in page.records if term.matches(record.key)]
    return Page(matching, page.cursor if len(matching) == len(page.records) else None)


def _stored_keys(scope: str, term: KeyTerm, privacy: Privacy | None) -> list[str]:
    """The term as a whole key, as it stands in the store: hidden too, where the store's secret is known."""
    return [term.text] if privacy is None else [term.text, privacy.hide(scope, term.text)]


def _list_scopes(
    store: Store, terms: Sequence[KeyTerm], found: dict[tuple[str, str], Record]
) -> tuple[list[Record], str]:
    """Read records for one of each scope, in a store that keeps them in no order. Those that match go to ``found``."""
    scopes: dict[str, Record] = {}
    cursor, count = None, 0
    while True:
        page = store.list(limit=PAGE_SIZE, cursor=cursor)
        for record in page.records:
            scopes[record.scope] = record
            if any(term.matches(record.key) for term in terms):
                found[record.scope, record.key] = record
        cursor, count = page.cursor, count + max(len(page.records), 1)
        if cursor is None:
            return list(scopes.values()), ""
        if count >= MAX_LISTED_RECORDS:
            return list(scopes.values()), (
                f"{store.capabilities.name} keeps keys in no order: a composite key or a prefix was looked for in "
                f"{MAX_LISTED_RECORDS:,} records, and a whole key in the scopes of these and of the named programs"
            )


def _detail(record: Record) -> str:
    """How often it was tried, and the last error. A record that is done has none."""
    attempts = f"{record.attempts} attempts" if record.attempts > 1 else ""
    error = format_error(*format_failure(record)) if record.error is not None else ""
    return "; ".join(filter(None, (attempts, error)))


def _match(record: Record, key: str, now: int) -> Match:
    return Match(
        kind=_KINDS[kind_of_scope(record.scope)],
        scope=record.scope,
        key=key,
        id=record.key,
        state=format_state(record, now),
        by="key",
        changed_at=record.changed_at,
        detail=_detail(record),
    )
