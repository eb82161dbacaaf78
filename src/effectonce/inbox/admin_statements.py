"""The statements of `InboxAdmin`, once per dialect: what they take and what they return."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from effectonce.contracts import Dialect, InboxPort
from effectonce.core.sql_files import inbox_admin_statements
from effectonce.values.identity import digest
from effectonce.values.key_term import KeyTerm

END_OF_TIME: Final = 2**63 - 1
MAX_RECENT_ROWS: Final = 10_000  # that a search on MySQL reads

#: Scope, key, created_at, expires_at, attempts, fingerprint and size of the result; `show` adds the result.
EntryRow = tuple[Any, ...]
#: A row's expires_at, scope and key: where the next page begins.
Position = tuple[int, str, str]


@lru_cache(maxsize=64)
def admin_statements(dialect: Dialect, table: str) -> AdminStatements:
    kind = HashedKeyStatements if dialect == "mysql" else TextKeyStatements
    return kind(inbox_admin_statements(dialect, table))


class AdminStatements(ABC):
    """Each method is one request: one statement, or a few for a search. It may be repeated."""

    def __init__(self, sql: dict[str, str]) -> None:
        self._sql = sql

    async def now(self, port: InboxPort) -> int:
        return int((await port.rows(self._sql["now"]))[0][0])

    async def list(
        self, port: InboxPort, unfinished: bool, before: Position, unexpired_since: int, limit: int
    ) -> Sequence[EntryRow]:
        """The rows before ``before``, the last to expire first."""
        name = "list_attempts" if unfinished else "list"
        return await port.rows(self._sql[name], (*self._position(before), unexpired_since, limit))

    async def walk(self, port: InboxPort, after: Position, expired_by: int, limit: int) -> Sequence[EntryRow]:
        """Scope, key, created_at and expires_at of the rows after ``after``, the first to expire first."""
        return await port.rows(self._sql["walk"], (*self._position(after), expired_by, limit))

    async def show(self, port: InboxPort, scope: str, key: str) -> EntryRow | None:
        identity = self._identity(scope, key)
        rows = await port.rows(self._sql["show"], identity) or await port.rows(self._sql["show_attempts"], identity)
        return rows[0] if rows else None

    async def count_expired(self, port: InboxPort, expired_by: int, limit: int) -> int:
        return int((await port.rows(self._sql["count_expired"], (expired_by, limit)))[0][0])

    @abstractmethod
    async def find(self, port: InboxPort, term: KeyTerm, max_scopes: int, limit: int) -> tuple[Sequence[EntryRow], str]:
        """The rows whose key is ``term``, and where this did not look."""

    @abstractmethod
    async def delete(self, port: InboxPort, rows: Sequence[EntryRow], handled_by: int, expired_by: int) -> int:
        """Delete those of ``rows`` that were handled and expire by these times. Returns how many."""

    @abstractmethod
    async def delete_attempts(self, port: InboxPort, expired_by: int, limit: int) -> int: ...

    @abstractmethod
    def _position(self, position: Position) -> tuple[Any, ...]:
        """The parameters of a place in a list."""

    @abstractmethod
    def _identity(self, scope: str, key: str) -> tuple[str, ...]:
        """The parameters that name a row."""


class TextKeyStatements(AdminStatements):
    """PostgreSQL and SQLite, whose primary key is the two texts, scope and key."""

    async def find(self, port: InboxPort, term: KeyTerm, max_scopes: int, limit: int) -> tuple[Sequence[EntryRow], str]:
        scopes = [scope for (scope,) in await port.rows(self._sql["scopes"], (max_scopes + 1,))]
        gap = f"only the first {max_scopes} scopes were searched" if len(scopes) > max_scopes else ""
        names = _json(scopes[:max_scopes])
        found: list[EntryRow] = []
        for first, end in term.ranges:
            found += await port.rows(self._sql["find"], (names, first, end, limit))
        return found, gap

    async def delete(self, port: InboxPort, rows: Sequence[EntryRow], handled_by: int, expired_by: int) -> int:
        names = _json([row[:2] for row in rows])
        return len(await port.rows(self._sql["delete"], (names, handled_by, expired_by)))

    async def delete_attempts(self, port: InboxPort, expired_by: int, limit: int) -> int:
        return len(await port.rows(self._sql["delete_attempts"], (expired_by, limit)))

    def _position(self, position: Position) -> tuple[Any, ...]:
        return position

    def _identity(self, scope: str, key: str) -> tuple[str, ...]:
        return scope, key


class HashedKeyStatements(AdminStatements):
    """MySQL and MariaDB, whose primary key is a hash of scope and key."""

    async def find(self, port: InboxPort, term: KeyTerm, max_scopes: int, limit: int) -> tuple[Sequence[EntryRow], str]:
        scopes = [scope for (scope,) in await port.rows(self._sql["scopes"], (max_scopes, MAX_RECENT_ROWS))]
        found: dict[tuple[str, str], EntryRow] = {}
        if scopes and not term.is_prefix:
            ids = [digest(scope, term.text).hex() for scope in scopes]
            found = {row[:2]: row for row in await port.rows(*self._with_ids("find", ids, ()))}
        for first, end in term.ranges:
            rows = await port.rows(self._sql["find_recent"], (first, end, limit, MAX_RECENT_ROWS))
            found.update((row[:2], row) for row in rows)
        gap = ""
        if await self.count_expired(port, END_OF_TIME, MAX_RECENT_ROWS + 1) > MAX_RECENT_ROWS:
            gap = (
                "this database has no index of keys: a composite key or a prefix was looked for in the "
                f"{MAX_RECENT_ROWS:,} newest rows, and a whole key in the scopes of these"
            )
        return list(found.values()), gap

    async def delete(self, port: InboxPort, rows: Sequence[EntryRow], handled_by: int, expired_by: int) -> int:
        ids = sorted(digest(row[0], row[1]).hex() for row in rows)
        return await self._count_deleted(port, *self._with_ids("delete", ids, (handled_by, expired_by)))

    async def delete_attempts(self, port: InboxPort, expired_by: int, limit: int) -> int:
        return await self._count_deleted(port, self._sql["delete_attempts"], (expired_by, limit))

    async def _count_deleted(self, port: InboxPort, sql: str, params: Sequence[Any]) -> int:
        return int((await port.rows(sql, params))[0][0])

    def _with_ids(self, name: str, ids: Sequence[str], params: Sequence[Any]) -> tuple[str, Sequence[Any]]:
        """The statement ``name`` with a placeholder for each of ``ids``, behind those of ``params``."""
        first = len(params) + 1
        placeholders = ",".join([f"UNHEX(${number})" for number in range(first, first + len(ids))])
        return self._sql[name].replace("{ids}", placeholders), [*params, *ids]

    def _position(self, position: Position) -> tuple[Any, ...]:
        expires_at, scope, key = position
        return expires_at, digest(scope, key).hex() if key else ""

    def _identity(self, scope: str, key: str) -> tuple[str, ...]:
        return (digest(scope, key).hex(),)


def _json(names: Sequence[Any]) -> str:
    return msgspec.json.encode(names).decode()
