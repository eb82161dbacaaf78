"""The session of Django: for ``django.db.connection`` inside ``transaction.atomic()``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from django.db import transaction  # type: ignore[import-untyped, unused-ignore]

from effectonce.errors import ConfigurationError

from .base_session import (
    BaseDriverSession,
    NamedRows,
    closed_connection_error,
    known_dialect,
    no_transaction_error,
    render,
)


class DjangoSession(BaseDriverSession):
    """Savepoints and transactions are Django's own `atomic`: its hooks and its flag for broken blocks depend on it."""

    __slots__ = ("_atomic", "_driver_connection", "dialect")
    is_async = False

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self.dialect = known_dialect(connection.vendor, "Django connection")
        self._atomic: Any = None
        self._driver_connection: Any = None

    @property
    def has_returning(self) -> bool:  # type: ignore[override]
        return self.dialect != "mysql" or bool(self.connection.mysql_is_mariadb)

    def require_transaction(self) -> None:
        connection = self.connection
        if connection.in_atomic_block:
            if connection.closed_in_transaction or connection.connection is None:
                raise closed_connection_error()
        elif connection.get_autocommit():
            raise no_transaction_error("`with transaction.atomic():`")

    async def _send(self, sql: str, params: Sequence[Any]) -> NamedRows:
        with self.connection.cursor() as cursor:
            sql, params = render(sql, params, "%s")
            cursor.execute(sql, params or None)
            if not cursor.description:
                return (), ()
            names = [column[0] for column in cursor.description]
            return names, cursor.fetchall()

    def _is_lost(self) -> bool:
        driver_connection = self._driver_connection or self.connection.connection
        return bool(getattr(driver_connection, "closed", False))

    async def savepoint(self) -> Any:
        connection = self.connection
        if self.dialect == "sqlite" and not connection.in_atomic_block:
            # Autocommit is off. Outside of a transaction a savepoint would begin one, and its release would commit it.
            connection.ensure_connection()
            if not connection.connection.in_transaction:
                await self.rows("BEGIN")
        atomic = transaction.atomic(using=self.connection.alias)
        atomic.__enter__()
        return atomic

    async def release(self, savepoint: Any) -> None:
        savepoint.__exit__(None, None, None)

    async def roll_back_to(self, savepoint: Any) -> None:
        savepoint.__exit__(_RolledBack, _RolledBack(), None)

    def on_commit(self, callback: Callable[[], None]) -> bool:
        if not self.connection.in_atomic_block:  # autocommit is off: Django does not see the commit either
            return False
        self.connection.on_commit(callback)
        return True

    async def _in_transaction(self) -> bool:
        # `_begin` checks this: `durable` refuses an open transaction, but not those of Django's own test cases.
        return False

    async def has_ended(self) -> bool:
        return not self.connection.in_atomic_block

    async def _begin(self) -> None:
        if not self.connection.in_atomic_block and not self.connection.get_autocommit():
            raise ConfigurationError(
                "autocommit is off on this Django connection, where the end of atomic() commits nothing; the inbox's "
                "handler owns its transaction: set AUTOCOMMIT to True, or use inbox.call() and commit yourself"
            )
        try:
            atomic = transaction.atomic(using=self.connection.alias, durable=True)
            atomic.__enter__()
        except RuntimeError as error:
            raise ConfigurationError(
                f"{error} The inbox's handler owns its transaction: call it outside of atomic(), or use inbox.call()"
            ) from error
        self._atomic = atomic

    async def _commit(self) -> None:
        atomic, self._atomic = self._atomic, None
        # Kept for `_is_lost`: after a commit that failed, Django opens another connection in its place.
        self._driver_connection = self.connection.connection
        atomic.__exit__(None, None, None)

    async def roll_back(self) -> None:
        atomic, self._atomic = self._atomic, None
        if atomic is not None:  # a failed commit has already left it
            atomic.__exit__(_RolledBack, _RolledBack(), None)

    async def close(self) -> None:
        # The connection stays Django's, which replaces it where an error has made it unusable.
        if self.connection.errors_occurred and not self.connection.in_atomic_block:
            self.connection.close_if_unusable_or_obsolete()


class _RolledBack(Exception):
    """Makes Django's `atomic` roll its block back."""
