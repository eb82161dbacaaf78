"""`HandlerRun`: one message through a handler of `Inbox.handler`, in a transaction that the inbox owns.

A run opens a connection, begins, inserts the row, lets the handler work, stores the result and commits. If that fails
because of the database, and not because of the handler, it starts again from the very beginning.
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any

from effectonce.errors import AttemptsExhausted, ConfigurationError, InProgress, Reentered, TransactionConflict, show
from effectonce.guard.introspection import name_of
from effectonce.guard.once import Outcome

from .recording import describe, outcome_of
from .table import InboxTable
from .transaction import InboxTransaction, log

if TYPE_CHECKING:
    from .handler import TransactionalHandler

#: Table, scope and key of the messages that this task or thread is handling. A handler that handles its own message
#: again would wait for itself.
_handling: ContextVar[tuple[tuple[str, str, str], ...]] = ContextVar("effectonce_handling", default=())


class HandlerRun(InboxTransaction):
    """An `InboxRun` over as many transactions as it takes."""

    def __init__(self, handler: TransactionalHandler, message: Any) -> None:
        super().__init__(handler)
        self.message = message
        self.codec = handler.codec
        self.key = handler.key_for(message)
        self.identity = (handler.inbox.table_name, self.key.scope, self.key.key)
        if self.identity in _handling.get():
            raise Reentered(
                f"scope {show(self.key.scope)!r} is already handling key {show(self.key.plain_key)!r} in this "
                "call: a handler that calls itself with its own message would wait for itself"
            )
        self.outcome: Outcome[Any]
        self._attempts: int | None = None  # counted in the database, this one included; None: not counted yet
        self._handling_token: Token[Any] | None = None  # while the handler runs: resets `_handling`

    async def begin(self) -> bool:
        key, inbox = self.key, self.handler.inbox
        session = await self.open()
        table = inbox.table(session)
        max_attempts = self.handler.options.max_attempts
        if max_attempts is not None and self._attempts is None:
            # Committed before the handler runs: the inbox row is rolled back with an attempt that fails, and a message
            # that kills the process must be counted too (F20, a poison message).
            self._attempts = await table.count_attempt(session, key) or 0
            await session.commit()
            await session.begin()
        try:
            existing = await table.insert(session, key, result=True)
        except InProgress:
            await self._refund_attempt(table)
            raise
        if existing is not None:
            await self._commit_outcome(inbox.replay(self.codec, key, existing), replayed=True)
            return False
        # Checked after the insert, which has waited for another delivery: that one may have succeeded.
        if max_attempts is not None and (self._attempts or 0) > max_attempts:
            raise AttemptsExhausted(
                f"{describe(key)} used all of its {max_attempts} attempts; fix the cause, then delete its row in "
                f"{inbox.table_name}_attempts to let it run again",
                "attempts-exhausted",
            )
        await self.mark()
        self._handling_token = _handling.set((*_handling.get(), self.identity))
        return True

    async def _refund_attempt(self, table: InboxTable) -> None:
        """Take back the attempt that was counted, since its handler did not run. If that fails, it stays counted."""
        if not self._attempts:
            return
        session = self.session
        try:
            await session.roll_back()
            await session.begin()
            await table.refund_attempt(session, self.key)
            await self._end_transaction()
        except Exception as error:
            log.debug("could not refund an attempt that did not run: %s", error)

    async def finish(self, value: Any) -> None:
        """Store the result and commit."""
        self._handler_has_ended()
        inbox, session, key = self.handler.inbox, self.session, self.key
        table, result = inbox.table(session), inbox.encode_result(self.codec, key, value)
        if await session.has_ended():
            await self._refuse_ended(table, result)
        # Sent even without a result: if the transaction has failed unnoticed, this statement raises the error.
        await table.store_result(session, key, result)
        if not await self.release_mark():
            await self._delete_committed_row(table)
            raise _rolled_back()
        await self._commit_outcome(value, replayed=False)

    async def abort(self, error: BaseException) -> float | None:
        self._handler_has_ended()
        return await super().abort(error)

    def _handler_has_ended(self) -> None:
        if self._handling_token is not None:
            _handling.reset(self._handling_token)
            self._handling_token = None

    async def _refuse_ended(self, table: InboxTable, result: bytes | None) -> None:
        """Raise an error, since the handler ended the transaction itself, and did nothing after that.

        If it committed, the row and the whole effect are committed: the row stays, and gets its result.
        """
        if not await self._is_row_committed(table):
            raise _rolled_back()
        await table.store_result(self.session, self.key, result)
        await self._end_transaction()
        raise ConfigurationError(
            f"{self._ended_transaction()} The message is recorded as handled, since all of it was committed; a crash "
            "before the handler's end would have lost the rest"
        )

    async def after_foreign_end(self) -> None:
        await self._delete_committed_row(self.handler.inbox.table(self.session))

    async def _delete_committed_row(self, table: InboxTable) -> None:
        """Clean up after a handler that ended the transaction and continued: roll back what is open, and delete the row
        if the handler committed it. Otherwise the message would count as handled, and be lost."""
        if await self._is_row_committed(table):
            await table.forget_many(self.session, [self.key])
            await self._end_transaction()
            raise ConfigurationError(
                f"{self._ended_transaction()} What it committed stays, what it did after that is undone, and the "
                "message is not recorded: it will run again from the beginning"
            )
        await self.session.roll_back()
        self._is_open = False

    async def _is_row_committed(self, table: InboxTable) -> bool:
        """Begin a new transaction, since the handler ended the old one. Returns whether it committed the row."""
        await self.begin_anew()
        return await table.is_ours(self.session, self.key)

    async def _end_transaction(self) -> None:
        """Commit, and keep the connection: the error that follows gives it back."""
        await self.session.commit()
        self._is_open = False

    def _ended_transaction(self) -> str:
        return (
            f"{name_of(self.handler.fn)} has ended the transaction it runs in (commit, rollback, begin, `with conn:`, "
            "executescript, or a statement that commits), which is the inbox's to commit: leave that out, or use a "
            "savepoint."
        )

    async def _commit_outcome(self, value: Any, *, replayed: bool) -> None:
        if self._attempts:
            await self.handler.inbox.table(self.session).forget_attempts(self.session, self.key)
        self.outcome = outcome_of(self.key, self.message, value, replayed=replayed, attempt=self._attempts)
        await self.commit()


def _rolled_back() -> TransactionConflict:
    return TransactionConflict(
        "the transaction was rolled back while the handler ran, and the handler went on: by the database (a deadlock "
        "whose error was caught: let it out), or by the handler (use a savepoint instead); all of it is undone"
    )
