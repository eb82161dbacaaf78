"""`CallRun`: one `Inbox.call`. Row, function and result share a savepoint of the caller's transaction.

The steps are those of `InboxRun`; `abort` rolls back to the savepoint. The transaction stays the caller's, who commits
it or not: a crash before that undoes all of it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from effectonce.core.codec import Codec
from effectonce.guard.once import Outcome
from effectonce.sessions import AwaitedCalls, BaseDriverSession

from .events import attempt_of, emit_recognised, kind_of_duplicate, kind_of_failure
from .recording import outcome_of, require_transaction_still, undo
from .table import InboxKey

if TYPE_CHECKING:
    from .inbox import Inbox


class CallRun:
    """An `InboxRun` that begins only once: the transaction is the caller's, so only the caller can repeat it."""

    translated_error = None

    def __init__(self, inbox: Inbox, session: BaseDriverSession, key: InboxKey, codec: Codec, message: Any) -> None:
        self.session = session
        self.outcome: Outcome[Any]
        self._inbox = inbox
        self._table = inbox.table(session)
        self._key = key
        self._codec = codec
        self._message = message
        self._savepoint: Any = None
        self._started_at = 0.0  # when the function was called; 0: not yet
        self._calls = AwaitedCalls()

    async def begin(self) -> bool:
        require_transaction_still(self.session)
        self._savepoint = await self.session.savepoint()
        existing = await self._table.insert(self.session, self._key, result=True)
        if existing is None:
            self._calls.begin()
            self._started_at = time.monotonic()
            return True
        await self._release()
        value = self._inbox.replay(self._codec, self._key, existing)
        self._emit(kind_of_duplicate(existing))
        self.outcome = outcome_of(self._key, self._message, value, replayed=True)
        return False

    async def finish(self, value: Any) -> None:
        self._calls.end()
        self._calls.require_all()
        # Sent even without a result: if the transaction has failed unnoticed, this statement raises the error.
        await self._table.store_result(
            self.session, self._key, self._inbox.encode_result(self._codec, self._key, value)
        )
        await self._release()
        self.outcome = outcome_of(self._key, self._message, value, replayed=False)
        seconds = time.monotonic() - self._started_at
        attempt = attempt_of(self._message)
        emit_recognised(self._inbox.events, self.session, self._key, attempt, is_first=True, seconds=seconds)

    async def _release(self) -> None:
        await self.session.release(self._savepoint)
        self._savepoint = None

    async def abort(self, error: BaseException) -> None:
        """Roll back to the savepoint. After a cancellation, too: the insert may have been executed all the same."""
        self._calls.end()
        try:
            if self._savepoint is not None:
                await undo(self.session, self._savepoint, error)
        finally:
            self._emit(kind_of_failure(error, was_called=self._started_at > 0), type(error).__name__)

    def _emit(self, kind: str, detail: str = "") -> None:
        events, key = self._inbox.events, self._key
        if events.hooks:
            seconds = time.monotonic() - self._started_at if self._started_at else 0.0
            events.emit(kind, key.scope, key.plain_key, attempt_of(self._message), seconds=seconds, detail=detail)
