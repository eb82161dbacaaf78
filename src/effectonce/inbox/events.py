"""The events of mode T: what became of each message, for the hooks of an inbox.

    first      the row was committed, and the effect with it
    recorded   the row is in a transaction of the caller's, and the driver does not tell whether that is committed
    duplicate  the message was handled before
    replayed   the same, and the caller got the stored result

An event is emitted when its fact is known, so a transaction that is rolled back is never counted as ``first``. No
statement is sent for an event.
"""

from __future__ import annotations

from typing import Any, Literal

from effectonce.core.events import Events
from effectonce.errors import AttemptsExhausted, InProgress, PayloadMismatch, ResultNotStored
from effectonce.message import Message
from effectonce.sessions import BaseDriverSession

from .table import ExistingRow, InboxKey

FailureKind = Literal["mismatch", "in_progress", "exhausted", "duplicate", "released"]


def kind_of_failure(error: BaseException, *, was_called: bool) -> FailureKind:
    """The kind of event of a message that ended with ``error``. ``was_called``: its handler had started, and may have
    raised an error of the inbox's kinds itself."""
    if not was_called:
        if isinstance(error, PayloadMismatch):
            return "mismatch"
        if isinstance(error, InProgress):
            return "in_progress"
        if isinstance(error, AttemptsExhausted):
            return "exhausted"
        if isinstance(error, ResultNotStored):
            return "duplicate"
    return "released"


def kind_of_duplicate(existing: ExistingRow) -> Literal["duplicate", "replayed"]:
    return "duplicate" if existing.result is None else "replayed"


def attempt_of(message: Any) -> int:
    """Which attempt a message is, by its broker's count; 1 for a bare key."""
    return message.attempt if isinstance(message, Message) else 1


def emit_recognised(
    events: Events, session: BaseDriverSession, key: InboxKey, attempt: int, *, is_first: bool, seconds: float = 0.0
) -> None:
    """Emit for a message that was recognised in the caller's transaction. One that is new is ``first`` when that is
    committed, where the driver calls back then; otherwise it is ``recorded``, now."""
    if not events.hooks:
        return

    def emit(kind: str) -> None:
        events.emit(kind, key.scope, key.plain_key, attempt, seconds=seconds)

    if not is_first:
        emit("duplicate")
    elif not session.on_commit(lambda: emit("first")):
        emit("recorded")
