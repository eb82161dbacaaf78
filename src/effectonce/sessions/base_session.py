"""`BaseDriverSession`, the base class of the sessions of all drivers.

It has what drivers have in common: placeholders, savepoints, beginning and ending a transaction, translated errors. A
subclass says how its driver sends a statement, and how it knows that a transaction is open.
"""

from __future__ import annotations

import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final, Literal

from effectonce.contracts import ConnectionLost, Dialect
from effectonce.errors import (
    ConfigurationError,
    InProgress,
    NotInTransaction,
    StoreUnavailable,
    TransactionConflict,
    show,
)
from effectonce.values.awaitables import maybe_await

from .sql_errors import lost_connection_error, translate

#: The names of the columns, and the rows.
NamedRows = tuple[Sequence[str], Sequence[tuple[Any, ...]]]

_PLACEHOLDER: Final = re.compile(r"\$(\d+)")
_MARK_SAVEPOINT: Final = "effectonce_mark"
_RAISE_IN_TRANSACTION: Final = (
    "DO $$ BEGIN RAISE 'effectonce: a cancelled statement may have been executed; roll this transaction back'; END $$"
)
_DIALECTS: Final[dict[str, Dialect]] = {
    "postgresql": "postgresql",
    "mysql": "mysql",
    "mariadb": "mysql",
    "sqlite": "sqlite",
}
_savepoint_numbers = itertools.count(1)


class BaseDriverSession(ABC):
    """One driver's connection as a `contracts.DriverSession`.

    Some inbox handlers run on a connection that effectonce opened itself. For these it can also begin, commit and roll
    back, and find out whether the handler has ended the transaction itself.
    """

    __slots__ = ("connection",)

    dialect: Dialect
    is_async: bool
    #: The server has INSERT … RETURNING.
    has_returning: bool = True
    #: If the task that awaits a statement is cancelled, the driver executes it all the same, and the connection stays
    #: usable.
    outlives_cancel: bool = False

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    @abstractmethod
    def require_transaction(self) -> None: ...

    @abstractmethod
    async def _send(self, sql: str, params: Sequence[Any]) -> NamedRows:
        """Run one statement. Returns the names of its columns and its rows as plain tuples."""

    async def rows(self, sql: str, params: Sequence[Any] = ()) -> Sequence[tuple[Any, ...]]:
        return (await self.named_rows(sql, params))[1]

    async def named_rows(self, sql: str, params: Sequence[Any] = ()) -> NamedRows:
        try:
            return await self._send(sql, params)
        except Exception as error:
            translated = self._translate(error)
            if translated is None:
                raise
            raise translated from error

    def _translate(self, error: Exception) -> Exception | None:
        if isinstance(error, OSError):
            return lost_connection_error(error)
        return translate(self.dialect, error, lost=self._is_lost())

    def _is_lost(self) -> bool:
        """Whether the driver knows that its connection is gone. Called after an error that has no code of its own."""
        return False

    async def fail_transaction(self) -> None:
        """Make sure that this transaction can only be rolled back, since a statement that was cancelled may have been
        executed all the same. Drivers of other databases close the connection on cancellation, or need no such step."""
        if self.dialect == "postgresql":
            with suppress(Exception):
                await self.rows(_RAISE_IN_TRANSACTION)

    async def savepoint(self) -> Any:
        name = f"effectonce_{next(_savepoint_numbers)}"
        await self.rows(f"SAVEPOINT {name}")
        return name

    async def release(self, savepoint: Any) -> None:
        await self.rows(f"RELEASE SAVEPOINT {savepoint}")

    async def roll_back_to(self, savepoint: Any) -> None:
        await self.rows(f"ROLLBACK TO SAVEPOINT {savepoint}")
        await self.release(savepoint)

    def on_commit(self, callback: Callable[[], None]) -> bool:
        """Call ``callback`` when the open transaction has been committed, and never if it is rolled back. False: this
        driver does not tell, so nothing will be called."""
        return False

    # -- on a connection that effectonce opened itself

    def refuse_commit(self, error: Exception) -> None:  # noqa: B027 - most drivers cannot
        """Let the commit of the open transaction raise ``error``, if the driver lets us see that commit."""

    async def begin(self) -> None:
        """Begin a transaction. `ConfigurationError` where one is open: it belongs to other code."""
        if await self._in_transaction():
            raise foreign_transaction()
        await self._begin()

    async def mark(self) -> None:
        """Set a savepoint by which `is_marked` recognises this transaction. It is always the database's own, not an
        ORM's."""
        await self.rows(f"SAVEPOINT {_MARK_SAVEPOINT}")

    async def is_marked(self, *, release: bool) -> bool:
        """Whether the transaction is still the one that was marked.

        The check itself changes the transaction. With ``release`` it removes the mark; without, it undoes everything
        since the mark. On PostgreSQL a transaction without the mark fails, and can only be rolled back.
        """
        try:
            await self.rows(f"{'RELEASE' if release else 'ROLLBACK TO'} SAVEPOINT {_MARK_SAVEPOINT}")
        except ConnectionLost:
            raise
        except Exception:
            return False
        return True

    async def has_ended(self) -> bool:
        """Whether the transaction has ended, as far as the driver knows."""
        return not await self._in_transaction()

    @abstractmethod
    async def _in_transaction(self) -> bool:
        """Whether a transaction is open, as far as the driver knows."""

    @abstractmethod
    async def _begin(self) -> None: ...

    async def commit(self) -> None:
        """Commit. A conflict, a lock timeout or a lost connection is raised as our error. Any other error is raised as
        it is: an ORM may flush only now, and find the handler's data wrong."""
        try:
            if self.dialect == "postgresql" and await self._has_failed():
                raise ConfigurationError(
                    "a statement has failed in this transaction, and its error was hidden: PostgreSQL answers the "
                    "COMMIT with a rollback; let the error out, or put the statement into a savepoint of its own"
                )
            await self._commit()
        except Exception as error:
            translated = self._translate(error)
            if isinstance(translated, TransactionConflict | InProgress | ConnectionLost):
                raise translated from error
            raise

    async def _has_failed(self) -> bool:
        """Whether a PostgreSQL transaction can only be rolled back: the server then refuses every statement."""
        await self.rows("SELECT 1")
        return False

    async def _commit(self) -> None:
        await maybe_await(self.connection.commit())

    async def roll_back(self) -> None:
        await maybe_await(self.connection.rollback())

    async def close(self) -> None:
        """Close the connection, or leave that to a framework that manages its own."""
        await maybe_await(self.connection.close())

    def database_failure(self, error: BaseException) -> Exception | None:
        """The conflict or the lost connection behind ``error``, which a handler raised; None where the error is the
        handler's own. So are all other errors of the driver: they are about what the handler did."""
        if not isinstance(error, Exception):
            return None
        translated = translate(self.dialect, error, lost=self._is_lost())
        if translated is error or isinstance(translated, TransactionConflict | ConnectionLost):
            return translated
        return None


def known_dialect(name: str, connection: str) -> Dialect:
    """The dialect of a framework's connection, by the name that Django and SQLAlchemy give it."""
    dialect = _DIALECTS.get(name)
    if dialect is None:
        raise ConfigurationError(
            f"this {connection} speaks {show(name)}; effectonce joins transactions on PostgreSQL, MySQL, MariaDB and "
            "SQLite"
        )
    return dialect


def no_transaction_error(how_to_begin: str) -> NotInTransaction:
    return NotInTransaction(
        "this connection commits each statement by itself, so the record would be committed without the effect; "
        f"begin a transaction first: {how_to_begin}"
    )


def foreign_transaction() -> ConfigurationError:
    return ConfigurationError(
        "this connection has a transaction open, and the handler begins its own; give connections without one "
        "(SQLAlchemy: engine.connect, not engine.begin)"
    )


def closed_connection_error(error: BaseException | None = None) -> StoreUnavailable:
    detail = f" ({error})" if error is not None else ""
    return StoreUnavailable(f"this connection is closed{detail}; open a new one, and run the whole transaction again")


@lru_cache(maxsize=512)
def _render_text(sql: str, placeholder: Literal["?", "%s"]) -> tuple[str, tuple[int, ...] | None]:
    """The text with the driver's placeholders, and the indexes of the parameters in the order in which the text uses
    them; None where that is their own order."""
    order = tuple(int(number) - 1 for number in _PLACEHOLDER.findall(sql))
    if placeholder == "%s":
        sql = sql.replace("%", "%%")
    return _PLACEHOLDER.sub(placeholder, sql), None if order == tuple(range(len(order))) else order


def render(sql: str, params: Sequence[Any], placeholder: Literal["?", "%s"]) -> tuple[str, Sequence[Any]]:
    """Rewrite a statement with ``$1``, ``$2``, … for a driver whose placeholders have no numbers. Returns the text, and
    the parameters in its order."""
    if not params:
        return sql, params
    text, order = _render_text(sql, placeholder)
    return text, params if order is None else [params[index] for index in order]
