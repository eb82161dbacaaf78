"""Orphaned intents: unfinished ones whose operation was renamed or removed.

Their records are in the scope of the old name. No process resumes them, and a redelivery under the new name is another
intent, which is sent again: so operators must see them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Final

from effectonce.errors import CorruptRecord
from effectonce.record import Record
from effectonce.store import Store
from effectonce.values.provider_keys import provider_key

from .log import LoggedIntent

_PAGE_SIZE: Final = 1000


def find_orphaned_scopes(
    store: Store,
    scope: str,
    known: Collection[str],
    log: Callable[[Record], LoggedIntent],
    *,
    in_doubt_only: bool = False,
    unleased_only: bool = False,
) -> list[str]:
    """List the scopes of ``Intents(store, scope=scope)`` that are not ``known`` and have unfinished intents. Reads all
    unfinished records of the store, which are few."""
    if not store.capabilities.notes:  # so it holds no intents either
        return []
    prefix = f"intents/{scope}/"
    is_ours: dict[str, bool] = {}
    now = store.now() if unleased_only else 0
    for record in _list_unfinished(store, in_doubt_only):
        if unleased_only and record.state == "claimed" and (record.lease_until or 0) > now:
            continue
        if record.scope not in is_ours and record.scope not in known and record.scope.startswith(prefix):
            try:
                is_ours[record.scope] = rebuild_id(record, scope, log(record), store) is not None
            except CorruptRecord:  # its owner cannot be read: rather report one too many than none
                is_ours[record.scope] = True
    return sorted(found for found, ours in is_ours.items() if ours)


def rebuild_id(record: Record, scope: str, log: LoggedIntent, store: Store) -> str | None:
    """Rebuild the id of an intent whose operation is not known. None: it belongs to other Intents, whose scope begins
    with ours. An id is made of all names apart, so it shows where the provider's name ends and the operation's begins.
    """
    privacy = store.engine.privacy
    names = record.scope.removeprefix(f"intents/{scope}/")
    for end, char in enumerate(names):
        if char == "/":
            id = provider_key(names[:end], log.account, scope, names[end + 1 :], log.key, log.step)
            if record.key == (id if privacy is None else privacy.hide(record.scope, id)):
                return id
    return None


def _list_unfinished(store: Store, in_doubt_only: bool) -> Iterator[Record]:
    for in_doubt in (True,) if in_doubt_only else (True, False):
        cursor: str | None = None
        while True:
            page = store.list(
                state="in_doubt" if in_doubt else None, unfinished=not in_doubt, limit=_PAGE_SIZE, cursor=cursor
            )
            yield from page.records
            cursor = page.cursor
            if cursor is None:
                break
