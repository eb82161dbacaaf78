"""Joined completions that are wrong: the intent, the caller's row and its message are not in one commit."""

from __future__ import annotations

from typing import Any

from effectonce.core.guarded_call.finish import finish
from effectonce.errors import LeaseLost
from effectonce.intents.runner import IntentRunner
from effectonce.intents.transactional import Sent
from effectonce.outbox.outbox import Outbox

from .base import mutant
from .relay import sent_outside_the_transaction

_write_completion, _exit, _settle = Sent._write_completion, Sent._exit, IntentRunner.settle


@mutant("F33", Sent, "_write_completion", "intents-K-joined+crash/1")
async def joined_completed_by_itself(self: Any, session: Any, result: Any) -> None:
    """The intent is completed by a transaction of its own, before the caller's commit."""
    if not self._run.replayed:
        await finish(self._run, self._run.runtime.async_client(), result)


async def _write_nothing(self: Any, session: Any, result: Any) -> None: ...


@mutant("F33", Sent, "_exit", "intents-K-joined+crash/1", also=(Sent, "_write_completion", _write_nothing))
async def joined_completed_after_the_commit(self: Any, client: Any) -> None:
    """The intent is completed after the caller's commit."""
    if not self._run.replayed:
        await finish(self._run, client, self._result)
    await _exit(self, client)


@mutant("F08", Sent, "_write_completion", "intents-K-joined+lapse/1")
async def joined_not_fenced(self: Any, session: Any, result: Any) -> None:
    """A worker whose claim is over commits its rows all the same."""
    try:
        await _write_completion(self, session, result)
    except LeaseLost:
        self._completed = True


@mutant("F33", Outbox, "_insert", "intents-K-joined+crash/1")
async def joined_message_sent_by_itself(self: Any, session: Any, rows: Any) -> None:
    """The message leaves although the transaction with the row and the completion does not commit."""
    await sent_outside_the_transaction(self, session, rows)


@mutant("F07", IntentRunner, "settle", "intents-K-joined-recover+crash/1")
async def recovery_completes_what_is_joined(self: Any, verdict: Any, error: Any) -> Any:
    """A recovery completes an intent whose rows only a delivery can write."""
    self._recovering = False
    return await _settle(self, verdict, error)
