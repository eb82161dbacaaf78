"""Records keys in the caller's open transaction: inserts their rows, and removes them again if something fails.

The caller's transaction must commit either the row and its effect, or neither. So a cancelled insert, a mismatch inside
a batch and a failed call leave no row behind, even if the caller continues and commits.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from effectonce.contracts import ConnectionLost
from effectonce.core.error_text import describe_error
from effectonce.errors import PayloadMismatch, TransactionConflict, show
from effectonce.guard.once import Outcome
from effectonce.sessions import BaseDriverSession

from .events import attempt_of
from .table import ExistingRow, InboxKey, InboxTable

Existing = dict[str, ExistingRow]  # by key

MAX_ERROR_CHARACTERS: Final = 300
"""How much of an attempt's error is kept, for the error and the dead letter of a message without attempts left."""


def text_of_failure(error: BaseException, *, private: bool) -> str:
    """The error of an attempt as it is recorded beside the count of the attempts. ``private``: only its class."""
    return type(error).__name__ if private else describe_error(error, MAX_ERROR_CHARACTERS)


async def record(table: InboxTable, session: BaseDriverSession, key: InboxKey) -> bool:
    """Insert the row of ``key``. Returns whether it is new. Raises `PayloadMismatch` if the row that exists was written
    for another payload."""
    require_transaction_still(session)

    async def insert() -> Existing:
        existing = await table.insert(session, key, result=False)
        return {} if existing is None else {key.key: existing}

    existing = await _insert_or_undo(table, session, [key], insert)
    if existing:
        refuse_mismatch(key, existing[key.key])
    return not existing


async def record_many(table: InboxTable, session: BaseDriverSession, keys: Sequence[InboxKey]) -> list[bool]:
    """Insert the rows of ``keys`` in one statement. Returns for each whether it is new; of equal keys only the first.

    Raises `PayloadMismatch`, and records none of them, if a row exists that was written for another payload.
    """
    unique: dict[str, InboxKey] = {}
    for key in keys:
        earlier = unique.setdefault(key.key, key)
        if earlier is not key:
            refuse_mismatch(key, ExistingRow(earlier.fingerprint, None))
    if not unique:
        return []
    require_transaction_still(session)
    distinct = list(unique.values())
    existing = await _insert_or_undo(table, session, distinct, lambda: table.insert_many(session, distinct))
    try:
        for text, row in existing.items():
            refuse_mismatch(unique[text], row)
    except PayloadMismatch:
        # If the caller continues and commits, the others would be recorded without having been handled.
        await table.forget_many(session, [key for key in distinct if key.key not in existing])
        raise
    return [unique[key.key] is key and key.key not in existing for key in keys]


async def _insert_or_undo(
    table: InboxTable, session: BaseDriverSession, keys: Sequence[InboxKey], insert: Callable[[], Awaitable[Existing]]
) -> Existing:
    """Run ``insert``, which inserts the rows of ``keys`` and returns those that were there, by key. If it is cancelled,
    delete its rows, or make the transaction fail: the statement may have been executed all the same, and the caller may
    continue and commit."""
    if not session.outlives_cancel:
        try:
            return await insert()
        except CancelledError:
            await session.fail_transaction()
            raise
    savepoint = await session.savepoint()
    try:
        existing = await insert()
    except GeneratorExit:
        raise
    except BaseException as error:
        await undo(session, savepoint, error)
        raise
    try:
        await session.release(savepoint)
    except CancelledError:
        await table.forget_many(session, [key for key in keys if key.key not in existing])
        raise
    return existing


async def undo(session: BaseDriverSession, savepoint: Any, error: BaseException) -> None:
    """Roll back to ``savepoint`` because of ``error``, which the caller raises afterwards.

    Raises `TransactionConflict` if the database has ended the whole transaction: then more is undone than this call.
    """
    try:
        await session.roll_back_to(savepoint)
    except ConnectionLost:  # the transaction is gone with the connection; ``error`` tells why
        pass
    except Exception as refusal:
        if not isinstance(error, Exception) or isinstance(error, TransactionConflict | ConnectionLost):
            return
        raise TransactionConflict(
            f"a failure in this call ended your whole transaction ({show(refusal, 200)}); roll back, and run the whole "
            "of it again, including the messages before this one"
        ) from error


def refuse_mismatch(key: InboxKey, existing: ExistingRow) -> None:
    """Raise `PayloadMismatch` if the row was written for another payload."""
    if existing.mismatches(key):
        raise PayloadMismatch(
            f"{describe(key)} was used before with another payload; a retry must send the same payload, and a "
            "new operation must have a new key"
        )


def require_transaction_still(session: BaseDriverSession) -> None:
    """Check again on an async connection: the answer may be awaited after the transaction has ended."""
    if session.is_async:
        session.require_transaction()


def outcome_of(key: InboxKey, message: Any, value: Any, *, replayed: bool, attempt: int = 0) -> Outcome[Any]:
    """The `Outcome` of a handled message. ``attempt``: the database's count; 0: use the broker's count."""
    return Outcome(value, replayed, key.plain_key, key.scope, attempt or attempt_of(message))


def describe(key: InboxKey) -> str:
    return f"scope {show(key.scope)!r}, key {show(key.plain_key)!r}"
