"""Finding intents: a record has the intent's id for its key, which is a hash. The key itself is in its log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from effectonce.core.claim_notes import read_listed_note
from effectonce.core.privacy import Privacy
from effectonce.errors import CorruptRecord
from effectonce.intents.logged_intent import LoggedIntent, decode_log
from effectonce.record import Record
from effectonce.store import Store
from effectonce.values.key_term import KeyTerm
from effectonce.values.provider_keys import provider_key

MAX_LOGS: Final = 1000
"""How many logs of one operation a search reads."""
PAGE_SIZE: Final = 200


def find_intents(
    store: Store, scope: str, terms: Sequence[KeyTerm], privacy: Privacy | None
) -> tuple[list[tuple[Record, LoggedIntent]], bool]:
    """Find the intents of one operation by their keys. Returns them, and whether all logs were read.

    The id of an intent without an account and a step is made of its whole key, and is looked up. All others are found
    by their logs, of which this reads the first `MAX_LOGS`.
    """
    found: dict[str, tuple[Record, LoggedIntent]] = {}
    for term in terms:
        for id in _possible_ids(scope, term.text):
            record = store.get(scope, id if privacy is None else privacy.hide(scope, id))
            _keep(found, record, terms, privacy)
    cursor, count = None, 0
    while count < MAX_LOGS:
        page = store.list(scope=scope, limit=PAGE_SIZE, cursor=cursor)
        for record in page.records:
            _keep(found, record, terms, privacy)
        cursor, count = page.cursor, count + PAGE_SIZE
        if cursor is None:
            break
    return list(found.values()), cursor is None


def _possible_ids(scope: str, key: str) -> Iterator[str]:
    """The ids of an intent with this key, for every way to read ``intents/SCOPE/PROVIDER/OPERATION``: names may have
    slashes themselves."""
    names = scope.split("/")[1:]
    for first in range(1, len(names) - 1):
        for second in range(first + 1, len(names)):
            owner, provider, operation = names[:first], names[first:second], names[second:]
            yield provider_key("/".join(provider), "", "/".join(owner), "/".join(operation), key, "")


def _keep(
    found: dict[str, tuple[Record, LoggedIntent]],
    record: Record | None,
    terms: Sequence[KeyTerm],
    privacy: Privacy | None,
) -> None:
    """Add ``record`` to ``found`` if its log can be read, and has one of the keys."""
    if record is None or record.note is None:
        return
    try:
        log = decode_log(read_listed_note(record, privacy))
    except CorruptRecord:  # sealed, or of a newer release
        return
    if any(term.matches(log.key) for term in terms):
        found[record.key] = record, log
