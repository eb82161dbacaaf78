"""Inboxes that are wrong: the row and the effect are not in one transaction, or a lost COMMIT counts as a success."""

from __future__ import annotations

from typing import Any

from effectonce.contracts import ConnectionLost
from effectonce.errors import AttemptsExhausted
from effectonce.inbox import table, transaction
from tests.proof.explorer.database import SimulatedSession
from tests.proof.explorer.tools.inbox import InboxSystem

from .base import mutant

_insert, _commit, _send = table.TextKeyTable.insert, transaction.InboxTransaction.commit, SimulatedSession._send
_work = InboxSystem.work


@mutant("F33", table.TextKeyTable, "insert", "inbox-T+raise/1")
async def record_kept_on_rollback(self: Any, session: Any, key: Any, *, result: bool) -> Any:
    """The row is committed before the handler runs, so one failure loses the message (sagaz)."""
    existing = await _insert(self, session, key, result=result)
    if existing is None:
        await session.commit()
        await session.begin()
    return existing


@mutant("F14", table.TextKeyTable, "insert", "inbox-T/0")
async def inbox_duplicate_is_first(self: Any, session: Any, key: Any, *, result: bool) -> Any:
    """A key that is stored is taken for a new one."""
    await _insert(self, session, key, result=result)


@mutant("F30", transaction.InboxTransaction, "commit", "inbox-T+lose/1")
async def lost_commit_is_success(self: Any) -> None:
    """A COMMIT without a reply is taken for a success: acked, and rolled back."""
    try:
        await _commit(self)
    except ConnectionLost:
        await self.give_back()


@mutant("F30", transaction.InboxTransaction, "abort", "inbox-T+lose/1")
async def broken_transaction_is_success(self: Any, error: BaseException) -> float | None:
    """A transaction that broke is not begun again, and counts as ended."""
    await self.give_back(error)
    self.translated_error = AttemptsExhausted("it broke", "attempts-exhausted")
    return None


@mutant("F05", InboxSystem, "work", "inbox-T+crash/1")
async def inbox_acked_before_commit(self: Any, simulation: Any, process: Any, delivery: Any) -> None:
    """Acked before the commit."""
    await simulation.ask_broker(process, delivery, "ack")
    await _work(self, simulation, process, delivery)


@mutant("F30", SimulatedSession, "_send", "inbox-T+late/1")
async def insert_does_not_wait(self: Any, sql: str, params: Any) -> Any:
    """The insert looks at what is committed instead of waiting for an open transaction with the same key."""
    database = self.connection.database
    hidden, database.transactions = database.transactions, []
    try:
        return await _send(self, sql, params)
    finally:
        database.transactions = hidden
