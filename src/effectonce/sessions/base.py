"""What the sessions of all drivers share: placeholders, savepoints, and errors in our words."""

from __future__ import annotations

import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final, Literal

from effectonce.contracts import ConnectionLost, Dialect
from effectonce.errors import ConfigurationError, InProgress, NotInTransaction, StoreUnavailable, TransactionConflict

from .sql_errors import broken, translate

Row = tuple[Any, ...]
Named = tuple[Sequence[str], Sequence[Row]]

_PLACEHOLDER: Final = re.compile(r"\$(\d+)")
_MARK: Final = "effectonce_mark"
_SPOIL: Final = "DO $$ BEGIN RAISE 'effectonce: what was cancelled may have been done; roll this back'; END $$"
_savepoints = itertools.count(1)


class Caller(ABC):
    """A `contracts.Session`, and the few words more that are needed where the transaction is ours to end."""

    __slots__ = ("connection",)

    dialect: Dialect
    is_async: bool
    #: INSERT … RETURNING is there.
    returning: bool = True
    #: A statement whose awaiting was cancelled is run all the same, and the connection stays usable.
    outlives_cancel: bool = False

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    @abstractmethod
    def require_transaction(self) -> None: ...

    @abstractmethod
    async def _send(self, sql: str, params: Sequence[Any], named: bool) -> Named:
        """Run one statement: the names of its columns (only where ``named``) and its rows, as plain tuples."""

    async def rows(self, sql: str, params: Sequence[Any] = ()) -> Sequence[Row]:
        try:
            return (await self._send(sql, params, False))[1]
        except Exception as error:
            known = self._known(error)
            if known is None:
                raise
            raise known from error

    async def described(self, sql: str, params: Sequence[Any] = ()) -> Named:
        try:
            return await self._send(sql, params, True)
        except Exception as error:
            known = self._known(error)
            if known is None:
                raise
            raise known from error

    def _known(self, error: Exception) -> Exception | None:
        return broken(error) if isinstance(error, OSError) else translate(self.dialect, error, lost=self._is_lost())

    def _is_lost(self) -> bool:
        """Whether the driver has found its connection to be gone. Asked after an error that has no code of its own."""
        return False

    async def spoil(self) -> None:
        """A statement whose awaiting was cancelled may have been done all the same: see to it that this transaction can
        only be rolled back. Nothing to do where the driver closes the connection."""
        if self.dialect == "postgresql":
            with suppress(Exception):
                await self.rows(_SPOIL)

    async def savepoint(self) -> Any:
        name = f"effectonce_{next(_savepoints)}"
        await self.rows(f"SAVEPOINT {name}")
        return name

    async def release(self, savepoint: Any) -> None:
        await self.rows(f"RELEASE SAVEPOINT {savepoint}")

    async def roll_back_to(self, savepoint: Any) -> None:
        await self.rows(f"ROLLBACK TO SAVEPOINT {savepoint}")
        await self.rows(f"RELEASE SAVEPOINT {savepoint}")

    # -- of a connection that was asked for by effectonce itself

    async def begin(self) -> None:
        """Begin a transaction. `ConfigurationError` where one is open: that is somebody else's."""
        if await self._in_transaction():
            raise somebody_elses()
        await self._begin()

    # A savepoint by which a transaction is known again: the driver's own word, whatever an ORM makes of savepoints.

    async def mark(self) -> None:
        await self.rows(f"SAVEPOINT {_MARK}")

    async def is_marked(self, *, release: bool) -> bool:
        """Whether the transaction is still the one that was marked. Where ``release``, its mark is gone by that; else
        all that was done since. On PostgreSQL a transaction without the mark has failed by the question."""
        try:
            await self.rows(f"{'RELEASE' if release else 'ROLLBACK TO'} SAVEPOINT {_MARK}")
        except ConnectionLost:
            raise
        except Exception:
            return False
        return True

    async def has_ended(self) -> bool:
        """Whether no transaction is open any more, as far as the driver knows."""
        return not await self._in_transaction()

    @abstractmethod
    async def _in_transaction(self) -> bool:
        """Whether a transaction is open, as far as the driver knows."""

    @abstractmethod
    async def _begin(self) -> None: ...

    async def commit(self) -> None:
        """Commit. A conflict, a lock or a lost connection is told in our words; what an ORM writes only now, and what
        is wrong with that, in its own."""
        try:
            if self.dialect == "postgresql" and await self._has_failed():
                raise has_failed()
            await self._commit()
        except Exception as error:
            known = self._known(error)
            if isinstance(known, TransactionConflict | InProgress | ConnectionLost):
                raise known from error
            raise

    async def _has_failed(self) -> bool:
        """Of PostgreSQL: whether nothing but a rollback is possible any more."""
        await self.rows("SELECT 1")  # which would be refused
        return False

    async def _commit(self) -> None:
        await _done(self.connection.commit())

    async def roll_back(self) -> None:
        await _done(self.connection.rollback())

    async def close(self) -> None:
        """Be done with the connection: close it, or leave that to a framework that keeps its own."""
        await _done(self.connection.close())

    def known(self, error: BaseException) -> Exception | None:
        """A conflict or a lost connection, where that is what ``error``, which got out of a handler, means: of the
        driver's errors, these say nothing about the handler. None: it is the handler's own."""
        known = translate(self.dialect, error, lost=self._is_lost()) if isinstance(error, Exception) else None
        return known if known is error or isinstance(known, TransactionConflict | ConnectionLost) else None


async def _done(answer: Any) -> None:
    """What a method of a driver of either colour gave."""
    if hasattr(answer, "__await__"):
        await answer


def not_in_transaction(how: str) -> NotInTransaction:
    return NotInTransaction(
        "this connection commits each statement by itself, so the record would be committed without the effect; "
        f"begin a transaction first: {how}"
    )


def somebody_elses() -> ConfigurationError:
    return ConfigurationError(
        "this connection has a transaction open, and the handler begins its own; give connections without one "
        "(SQLAlchemy: engine.connect, not engine.begin)"
    )


def has_failed() -> ConfigurationError:
    return ConfigurationError(
        "a statement has failed in this transaction, and its error was hidden: PostgreSQL answers the COMMIT with a "
        "rollback; let the error out, or put the statement into a savepoint of its own"
    )


def closed(error: BaseException | None = None) -> StoreUnavailable:
    said = f" ({error})" if error is not None else ""
    return StoreUnavailable(f"this connection is closed{said}; open a new one, and run the whole transaction again")


@lru_cache(maxsize=512)
def _rendered(sql: str, mark: Literal["?", "%s"]) -> tuple[str, tuple[int, ...] | None]:
    order = tuple(int(number) - 1 for number in _PLACEHOLDER.findall(sql))
    if mark == "%s":
        sql = sql.replace("%", "%%")
    return _PLACEHOLDER.sub(mark, sql), None if order == tuple(range(len(order))) else order


def render(sql: str, params: Sequence[Any], mark: Literal["?", "%s"]) -> tuple[str, Sequence[Any]]:
    """A statement with ``$1``, ``$2``, … for a driver that counts its placeholders by itself."""
    if not params:
        return sql, params
    text, order = _rendered(sql, mark)
    return text, params if order is None else [params[at] for at in order]
