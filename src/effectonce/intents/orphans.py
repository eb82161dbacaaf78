"""Intents whose operation is not known any more: it was renamed or removed while they were not finished.

Their records are in scopes of their own. Nobody goes on with them, and a redelivery under the new name is another
intent, which is sent: so whoever looks has to be told.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from effectonce.errors import CorruptRecord
from effectonce.record import Record
from effectonce.store import Store
from effectonce.values.provider_keys import provider_key

from .log import Log

_PAGE = 1000


def orphaned(
    store: Store,
    scope: str,
    known: Collection[str],
    log: Callable[[Record], Log],
    *,
    doubtful: bool = False,
    left: bool = False,
) -> list[str]:
    """The scopes of ``Intents(store, scope=scope)`` that are not ``known``, and have what is not finished: only what is
    in doubt (``doubtful``), or only what nobody runs (``left``). Walks what is not finished, which is little."""
    if not store.capabilities.notes:  # so there are no intents either
        return []
    prefix = f"intents/{scope}/"
    seen: dict[str, bool] = {}
    now = store.now() if left else 0
    for record in _unfinished(store, doubtful):
        at = record.scope
        if left and record.state == "claimed" and (record.lease_until or 0) > now:
            continue
        if at not in seen and at not in known and at.startswith(prefix):
            try:
                seen[at] = id_in(record, scope, log(record), store) is not None
            except CorruptRecord:  # whose it is cannot be read: told once too often is better than never
                seen[at] = True
    return sorted(at for at, ours in seen.items() if ours)


def id_in(record: Record, scope: str, about: Log, store: Store) -> str | None:
    """What an intent is known by whose operation is not; None where it is of other Intents, whose scope begins with
    ours: an id is made of all names apart, so it tells where one ends and the next begins."""
    privacy = store.runtime.privacy
    names = record.scope.removeprefix(f"intents/{scope}/")
    for end, char in enumerate(names):
        if char == "/":
            id = provider_key(names[:end], about.account, scope, names[end + 1 :], about.key, about.step)
            if record.key == (id if privacy is None else privacy.hide(record.scope, id)):
                return id
    return None


def _unfinished(store: Store, doubtful: bool) -> Iterator[Record]:
    for in_doubt in (True,) if doubtful else (True, False):
        cursor: str | None = None
        while True:
            page = store.list(
                state="in_doubt" if in_doubt else None, unfinished=not in_doubt, limit=_PAGE, cursor=cursor
            )
            yield from page.records
            cursor = page.cursor
            if cursor is None:
                break
