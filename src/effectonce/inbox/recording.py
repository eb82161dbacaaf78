"""Recording keys in a transaction that is already open: insert rows, and undo them where the caller could keep half.

What the caller's transaction commits must be either the row and its effect, or neither. So a cancelled insert, a
mismatch inside of a batch and a failed call each leave no row behind, even where the caller goes on and commits.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from effectonce.contracts import ConnectionLost
from effectonce.errors import PayloadMismatch, TransactionConflict, show
from effectonce.guard.once import Outcome
from effectonce.message import Message
from effectonce.sessions import DriverAdapter

from .table import ExistingRow, InboxKey, InboxTable

T = TypeVar("T")


async def record(table: InboxTable, session: DriverAdapter, key: InboxKey) -> bool:
    """Insert the row of ``key``. Returns whether it is new; `PayloadMismatch` if it was used for another payload."""
    require_transaction_still(session)
    existing = await _insert_or_undo(
        table,
        session,
        insert=lambda: table.insert(session, key, result=False),
        inserted_keys=lambda existing: [key] if existing is None else [],
    )
    if existing is None:
        return True
    refuse_mismatch(key, existing)
    return False


async def record_many(table: InboxTable, session: DriverAdapter, keys: Sequence[InboxKey]) -> list[bool]:
    """Insert the rows of ``keys`` in one statement. Returns whether each is new; of equal keys, the first can be.

    `PayloadMismatch` if any has another payload than before: then none of them is recorded.
    """
    unique: dict[str, InboxKey] = {}
    for key in keys:
        earlier = unique.setdefault(key.key, key)
        if earlier is not key:
            refuse_mismatch(key, ExistingRow(earlier.fingerprint, None))
    if not unique:
        return []
    require_transaction_still(session)

    def inserted_keys(existing: dict[str, ExistingRow]) -> list[InboxKey]:
        return [key for text, key in unique.items() if text not in existing]

    existing = await _insert_or_undo(
        table,
        session,
        insert=lambda: table.insert_many(session, list(unique.values())),
        inserted_keys=inserted_keys,
    )
    try:
        for text, row in existing.items():
            refuse_mismatch(unique[text], row)
    except PayloadMismatch:
        # A caller who goes on and commits would otherwise have the others recorded, and not done.
        await table.forget_many(session, inserted_keys(existing))
        raise
    return [unique[key.key] is key and key.key not in existing for key in keys]


async def _insert_or_undo(
    table: InboxTable,
    session: DriverAdapter,
    *,
    insert: Callable[[], Awaitable[T]],
    inserted_keys: Callable[[T], list[InboxKey]],
) -> T:
    """Run ``insert``. Where it is cancelled, its rows are deleted, or the transaction is made to fail: the statement
    may have been executed all the same, and the caller may go on and commit."""
    if not session.outlives_cancel:
        try:
            return await insert()
        except CancelledError:
            await session.fail_transaction()
            raise
    savepoint = await session.savepoint()
    try:
        inserted = await insert()
    except GeneratorExit:
        raise
    except BaseException as error:
        await undo(session, savepoint, error)
        raise
    try:
        await session.release(savepoint)
    except CancelledError:
        await table.forget_many(session, inserted_keys(inserted))
        raise
    return inserted


async def undo(session: DriverAdapter, savepoint: Any, error: BaseException) -> None:
    """Roll back to ``savepoint`` because of ``error``, which the caller of this raises.

    `TransactionConflict` where the database has ended the whole transaction: then more is undone than this call.
    """
    try:
        await session.roll_back_to(savepoint)
    except ConnectionLost:  # the transaction is gone with the connection; ``error`` tells why
        pass
    except Exception as refusal:
        if not isinstance(error, Exception) or isinstance(error, TransactionConflict | ConnectionLost):
            return
        raise TransactionConflict(
            f"your whole transaction is gone with what failed in it, not this call alone ({show(refusal, 200)}); roll "
            "back, and run the whole of it again, the messages before this one too"
        ) from error


def refuse_mismatch(key: InboxKey, existing: ExistingRow) -> None:
    """`PayloadMismatch` if the row was written for another payload."""
    if existing.mismatches(key):
        raise PayloadMismatch(
            f"{describe(key)} was used before with another payload; a retry must send the same payload, and a "
            "new operation must have a new key"
        )


def require_transaction_still(session: DriverAdapter) -> None:
    """On an async connection an answer may be awaited long after it was asked for, when the transaction is over."""
    if session.is_async:
        session.require_transaction()


def outcome_of(key: InboxKey, message: Any, value: Any, *, replayed: bool, attempt: int | None = None) -> Outcome[Any]:
    """The `Outcome` of a handled message. ``attempt``: as counted in the database; None or 0: the broker's count."""
    if not attempt:
        attempt = message.attempt if isinstance(message, Message) else 1
    return Outcome(value, replayed, key.plain_key, key.scope, attempt)


def describe(key: InboxKey) -> str:
    return f"scope {show(key.scope)!r}, key {show(key.plain_key)!r}"
