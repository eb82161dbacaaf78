"""The seam to inboxes: the connection on which operators look at the rows of one, and purge them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from .sessions import Dialect


class InboxPort(Protocol):
    """One connection to the database of an inbox, of the store's own: no transaction of a user's is open there. The
    obligations of `Port` hold here, too: when it connects, what it raises, and that its coroutines never suspend."""

    dialect: Dialect
    table: str

    async def rows(self, sql: str, params: Sequence[Any] = ()) -> Sequence[tuple[Any, ...]]:
        """Run one of the inbox's own statements as a transaction of its own, with ``$1``, ``$2``, … for its parameters
        (str, int, bytes or None), and return its rows. On MySQL it may be two statements: the rows of the last."""

    async def close(self) -> None: ...


@runtime_checkable
class InboxBackend(Protocol):
    """An optional ability of a `Backend`: its database can hold an inbox. ``table``: by default the one that its
    `migrate` has created."""

    def sync_inbox(self, table: str | None = None) -> InboxPort: ...
