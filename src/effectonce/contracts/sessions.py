"""The seam to the caller's own connection, whatever driver made it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol, runtime_checkable

from effectonce.record import Settlement

Dialect = Literal["sqlite", "postgresql", "mysql"]


class SyncConnection(Protocol):
    """How a type checker recognises a sync connection of any driver."""

    def commit(self) -> None: ...


class AsyncConnection(Protocol):
    """How a type checker recognises an async connection, except asyncpg's."""

    async def commit(self) -> None: ...


class AsyncpgConnection(Protocol):
    """asyncpg's connections have no `commit`."""

    def is_in_transaction(self) -> bool: ...


class DriverSession(Protocol):
    """A connection that belongs to the caller, and the transaction that is open on it.

    Made for one call by `sessions.session_on`, from whatever the caller passed. `require_transaction` comes
    before the first `rows`: a session may note there what it has to check with its first statement. Otherwise it holds
    no state, and it never begins, ends or repeats a transaction that the caller opened.
    """

    dialect: Dialect
    #: Whether the connection is of an async driver. The coroutines of a sync session never suspend.
    is_async: bool
    #: The server has INSERT … RETURNING (MySQL has none).
    has_returning: bool

    def require_transaction(self) -> None:
        """Raise `NotInTransaction` where a statement would commit by itself, and `StoreUnavailable` where the
        connection is closed. No round trip."""

    async def rows(self, sql: str, params: Sequence[Any] = ()) -> Sequence[tuple[Any, ...]]:
        """Run one statement, with ``$1``, ``$2``, … for its parameters, and return its rows ([] where it has none).

        One round trip. Driver errors are translated here, with the original as ``__cause__``: a missing table is
        `SchemaMissing`, a deadlock or serialization failure `TransactionConflict`, a lock that was not granted in time
        `InProgress`, a broken connection `ConnectionLost`. Other errors are passed on as they are.
        """

    async def named_rows(self, sql: str, params: Sequence[Any] = ()) -> tuple[Sequence[str], Sequence[tuple[Any, ...]]]:
        """Do what `rows` does, and return the names of the columns before the rows."""

    async def savepoint(self) -> Any:
        """Set a savepoint in the transaction, and return its name or handle."""

    async def release(self, savepoint: Any) -> None:
        """Remove a savepoint, and keep what was done since."""

    async def roll_back_to(self, savepoint: Any) -> None:
        """Undo everything since ``savepoint``, in the database and in an ORM's cache of it. The transaction stays
        open."""


@runtime_checkable
class Joinable(Protocol):
    """An optional ability of a `Backend`: its records are in a SQL database, so that the caller's own transaction can
    complete one."""

    def completion(self, op: Settlement) -> tuple[Dialect, Sequence[tuple[str, Sequence[Any]]]]:
        """The statements, with their parameters, that settle ``op`` (whose state is ``done``) in the caller's
        transaction, and the dialect that its `DriverSession` must have. They run in order; the last one returns a row
        if the settlement was applied."""
