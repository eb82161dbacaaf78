"""What others left: the intents and sagas that nobody runs and nobody has finished, a bounded number at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

from effectonce.errors import InvalidOption
from effectonce.record import Page, Record

AT_ONCE: Final = 50
"""How many are on their way at a time in an event loop, so that they share commits."""
_PAGE: Final = 100
_LOOKED_AT: Final = 10  # times the limit: what others run is passed over, but not without end


class RecordSource(Protocol):
    """A `Store`, as far as unfinished records are concerned."""

    def now(self) -> int: ...

    def list(self, *, scope: str, unfinished: bool, limit: int, cursor: str | None) -> Page: ...


def never() -> bool:
    """Nobody asks to stop."""
    return False


class Leftovers:
    """The unfinished records of one scope.

    A call with a limit goes on where the last one ended, so that none waits forever behind those that cannot be
    finished. Several processes may look at once: whoever claims one has it.
    """

    def __init__(self, store: RecordSource, scope: str) -> None:
        self._store = store
        self._scope = scope
        self._cursor: str | None = None

    def pages(self, limit: int | None, idle: int = 0) -> Iterator[list[Record]]:
        """Those that nobody holds and that nobody has touched for ``idle`` microseconds, up to ``limit`` in all."""
        if limit is not None and limit < 1:
            raise InvalidOption(f"limit={limit!r} is not a number to go on with; give 1 or more")
        now = self._store.now()
        cursor, left = self._cursor if limit is not None else None, limit
        looked_at = 0
        while True:
            size = _PAGE if left is None else min(left, _PAGE)
            page = self._store.list(scope=self._scope, unfinished=True, limit=size, cursor=cursor)
            found = [record for record in page.records if _left(record, now, idle)]
            cursor = page.cursor
            yield found
            if limit is not None and left is not None:  # not before: who stops in a page begins with it the next time
                self._cursor, left, looked_at = cursor, left - len(found), looked_at + size
            if cursor is None or (limit is not None and (not left or looked_at >= limit * _LOOKED_AT)):
                return


def _left(record: Record, now: int, idle: int) -> bool:
    held = record.state == "claimed" and (record.lease_until or 0) > now
    return not held and record.changed_at <= now - idle
