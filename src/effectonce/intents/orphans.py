"""Orphaned intents: unfinished ones whose operation was renamed or removed.

Their records are in the scope of the old name. No process resumes them, and a redelivery under the new name is another
intent, which is sent again: so operators must see them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from effectonce.core.unfinished import list_pages
from effectonce.errors import CorruptRecord
from effectonce.record import Record
from effectonce.store import Store
from effectonce.values.provider_keys import provider_key
from effectonce.values.scopes import INTENT_PREFIX

if TYPE_CHECKING:
    from .intents import Intents

_PAGE_SIZE: Final = 1000


def find_orphaned_scopes(intents: Intents, *, in_doubt_only: bool = False, unleased_only: bool = False) -> list[str]:
    """List the scopes of ``intents`` that belong to no known operation and have unfinished intents. Reads all
    unfinished records of the store, which are few."""
    store = intents.store
    if not store.capabilities.notes:  # so it holds no intents either
        return []
    prefix = f"{INTENT_PREFIX}{intents.scope}/"
    is_ours: dict[str, bool] = {}
    now = store.now() if unleased_only else 0
    unfinished = () if in_doubt_only else list_records(store, unfinished=True)
    for record in chain(list_records(store, state="in_doubt"), unfinished):
        scope = record.scope
        if unleased_only and record.state == "claimed" and (record.lease_until or 0) > now:
            continue
        if scope not in is_ours and scope not in intents.operations and scope.startswith(prefix):
            try:
                is_ours[scope] = rebuild_id(intents, record) is not None
            except CorruptRecord:  # its owner cannot be read: rather report one too many than none
                is_ours[scope] = True
    return sorted(scope for scope, ours in is_ours.items() if ours)


def rebuild_id(intents: Intents, record: Record) -> str | None:
    """Rebuild the id of an intent whose operation is not known. None: it belongs to other Intents, whose scope begins
    with ours. An id is made of all names apart, so it shows where the provider's name ends and the operation's begins.
    """
    log, privacy = intents.log(record), intents.store.runtime.privacy
    names = record.scope.removeprefix(f"{INTENT_PREFIX}{intents.scope}/")
    for end, char in enumerate(names):
        if char == "/":
            id = provider_key(names[:end], log.account, intents.scope, names[end + 1 :], log.key, log.step)
            if record.key == (id if privacy is None else privacy.hide(record.scope, id)):
                return id
    return None


def list_records(store: Store, limit: int = _PAGE_SIZE, **query: Any) -> Iterator[Record]:
    """Iterate over the records that `Store.list` finds, ``limit`` at a time."""
    for page in list_pages(store.list, limit=limit, **query):
        yield from page.records
