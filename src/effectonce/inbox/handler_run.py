"""`HandlerRun`: one message through a handler of `Inbox.handler`, in a transaction that the inbox owns.

A run opens a connection, begins, inserts the row, lets the handler work, stores the result and commits. If that fails
because of the database, and not because of the handler, it starts again from the very beginning.
"""

from __future__ import annotations

import time
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, Final

from effectonce.contracts import ConnectionLost
from effectonce.errors import AttemptsExhausted, ConfigurationError, InProgress, Reentered, TransactionConflict, show
from effectonce.guard.introspection import name_of
from effectonce.guard.once import Outcome
from effectonce.sessions import BaseDriverSession

from .events import attempt_of, kind_of_duplicate, kind_of_failure
from .recording import describe, outcome_of, text_of_failure
from .table import InboxTable, StartCount
from .transaction import InboxTransaction, log

if TYPE_CHECKING:
    from .handler import TransactionalHandler

NO_STARTS: Final = StartCount(0)
"""The count of a message that was handled when its start was to be counted."""

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
        self._starts: StartCount | None = None  # as counted before this attempt; None: not counted yet
        self._handling_token: Token[Any] | None = None  # while the handler runs: resets `_handling`
        self._started_at = 0.0  # when this attempt called the handler; 0: not yet
        self._is_reported = False  # the event of the message was emitted

    async def begin(self) -> bool:
        key, inbox = self.key, self.handler.inbox
        self._started_at = 0.0
        session = await self.open()
        table = inbox.table(session)
        if self.handler.counts_starts and self._starts is None:
            # Committed before the handler runs: the inbox row is rolled back with an attempt that fails, and a message
            # that kills the process must be counted too (F20, a poison message).
            self._starts = await table.count_attempt(session, key) or NO_STARTS
            await session.commit()
            await session.begin()
        try:
            existing = await table.insert(session, key, result=True)
        except InProgress:
            await self._refund_attempt(table)
            raise
        if existing is not None:
            await self._commit_outcome(inbox.replay(self.codec, key, existing), replayed=True)
            self._emit(kind_of_duplicate(existing))
            return False
        # Checked after the insert, which has waited for another delivery: that one may have succeeded.
        if self._starts is not None:
            self._check_start(self._starts)
        await self.mark()
        self._handling_token = _handling.set((*_handling.get(), self.identity))
        self._started_at = time.monotonic()
        return True

    def _check_start(self, starts: StartCount) -> None:
        """Raise an error if no further attempt is allowed."""
        handler, max_attempts = self.handler, self.handler.options.max_attempts
        if handler.check_start is not None:
            handler.check_start(self.message, starts)
        elif max_attempts is not None and starts.total > max_attempts:
            last_error = "" if starts.last_error is None else f"the last error was {starts.last_error}; "
            raise AttemptsExhausted(
                f"{describe(self.key)} used all of its {max_attempts} attempts; {last_error}fix the cause, then delete "
                f"its row in {handler.inbox.table_name}_starts to let it run again",
                "attempts-exhausted",
            )

    async def _refund_attempt(self, table: InboxTable) -> None:
        """Take back the attempt that was counted, since its handler did not run. If that fails, it stays counted."""
        if not self._attempt:
            return
        session = self.session
        try:
            await session.roll_back()
            await session.begin()
            await table.refund_attempt(session, self.key)
            await self.commit_and_keep()
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
        self._emit("first")

    async def abort(self, error: BaseException) -> float | None:
        self._handler_has_ended()
        pause = await super().abort(error)
        if pause is None:
            raised, was_called = self.translated_error or error, self._started_at > 0
            self._emit(kind_of_failure(raised, was_called=was_called), type(raised).__name__)
            if was_called and self._attempt and self.handler.check_start is None:
                await self._record_last_error(raised)
        return pause

    async def _record_last_error(self, error: BaseException) -> None:
        """Record ``error`` beside the count of the attempts, so that `AttemptsExhausted` can name it. If that fails,
        the attempt is counted all the same."""
        if not isinstance(error, Exception) or isinstance(error, ConnectionLost | TransactionConflict):
            return  # interrupted, or the database failed: that says nothing about the message
        inbox = self.handler.inbox

        async def write(session: BaseDriverSession) -> None:
            text = text_of_failure(error, private=inbox.private)
            await inbox.table(session).report_failure(session, self.key, text, uncounted=False)
            await session.commit()

        try:
            await InboxTransaction(self.handler).run_once(write)
        except Exception as failure:
            log.debug("could not record the error of an attempt: %s", failure)

    def _emit(self, kind: str, detail: str = "") -> None:
        events, key = self.handler.inbox.events, self.key
        if events.hooks and not self._is_reported:
            self._is_reported = True
            seconds = time.monotonic() - self._started_at if self._started_at else 0.0
            attempt = self._attempt or attempt_of(self.message)
            events.emit(kind, key.scope, key.plain_key, attempt, seconds=seconds, detail=detail)

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
        await self.commit_and_keep()
        self._emit("first")
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
            await self.commit_and_keep()
            raise ConfigurationError(
                f"{self._ended_transaction()} What it committed stays, what it did after that is undone, and the "
                "message is not recorded: it will run again from the beginning"
            )
        await self.roll_back_and_keep()

    async def _is_row_committed(self, table: InboxTable) -> bool:
        """Begin a new transaction, since the handler ended the old one. Returns whether it committed the row."""
        await self.begin_anew()
        return await table.is_ours(self.session, self.key)

    def _ended_transaction(self) -> str:
        return (
            f"{name_of(self.handler.fn)} has ended the transaction it runs in (commit, rollback, begin, `with conn:`, "
            "executescript, or a statement that commits), which is the inbox's to commit: leave that out, or use a "
            "savepoint."
        )

    async def _commit_outcome(self, value: Any, *, replayed: bool) -> None:
        if self._attempt:
            await self.handler.inbox.table(self.session).forget_attempts(self.session, self.key)
        self.outcome = outcome_of(self.key, self.message, value, replayed=replayed, attempt=self._attempt)
        await self.commit()

    @property
    def _attempt(self) -> int:
        """Which attempt this is by the database's count; 0 where it was not counted."""
        return 0 if self._starts is None else self._starts.total


def _rolled_back() -> TransactionConflict:
    return TransactionConflict(
        "the transaction was rolled back while the handler ran, and the handler continued: by the database (a deadlock "
        "whose error was caught: let it out), or by the handler (use a savepoint instead); all of it is undone"
    )
