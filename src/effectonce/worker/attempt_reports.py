"""`AttemptReports`: mode T records how each attempt at a message ended, beside the count of its starts.

The inbox counts the starts of a message, and tells which of them never reported an outcome: those probably took their
process down (F20). So an attempt whose end this process sees must be reported, or a later one is given up as poison:

    its start was counted    its handler failed    what is recorded
    yes (a redelivery)       yes                   the failure; no start is unreported any more
    yes                      no                    a refund: the start does not count
    no (a first delivery)    yes                   the failure, with its start
    no                       no                    nothing

A handler has not failed where the database did, where it waits for a call that runs elsewhere, or where its error stops
the worker. A start that the inbox has refunded itself needs no second refund.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

from msgspec import Struct

from effectonce.contracts import ConnectionLost
from effectonce.errors import (
    InProgress,
    NotInTransaction,
    SchemaMissing,
    SyncAsyncMismatch,
    TransactionConflict,
    UnsafeStore,
    show,
)
from effectonce.inbox.handler import TransactionalHandler
from effectonce.inbox.recording import text_of_failure
from effectonce.inbox.transaction import InboxTransaction
from effectonce.sessions import BaseDriverSession

from .handler_pool import is_failure
from .jobs import Job
from .routes import RedeliverUncounted

log = logging.getLogger("effectonce")

#: The database failed, not the handler: that is not an attempt at the message.
DATABASE_ERRORS: Final = (ConnectionLost, TransactionConflict)

#: What no retry can fix: the worker stops.
FATAL_ERRORS: Final = (SchemaMissing, UnsafeStore, SyncAsyncMismatch, NotInTransaction)


class AttemptEnd(Struct, frozen=True):
    """How an attempt that did not succeed ended. ``error``: with which failure; None: with none, so it does not count.
    ``uncounted``: its start was not counted."""

    error: str | None
    uncounted: bool = False


class AttemptReports:
    """Records the ends of the attempts of one handler, each in a transaction of its own.

    Its coroutines run where the handler does: on the event loop, or on the threads of a sync handler's pool, which
    share ``_unrecorded``.
    """

    def __init__(self, handler: TransactionalHandler) -> None:
        self._handler = handler
        #: By key: ends that the database did not take. In memory only: if the process dies, the start stays
        #: unreported, and the next attempt counts it as a crash.
        self._unrecorded: dict[str, AttemptEnd] = {}

    async def record_earlier(self, job: Job) -> None:
        """Record the end of the last attempt at ``job``, if the database did not take it then. Call this before the
        next attempt, which would count that start as a crash. Raises `ConnectionLost` if that fails again."""
        end = self._unrecorded.get(job.key)
        if end is not None and not await self._record(job, end):
            raise ConnectionLost(
                "the database does not answer: how an attempt ended could not be recorded; that is retried before the "
                "next attempt"
            )

    async def record(self, job: Job, error: BaseException) -> None:
        """Record that the attempt at ``job`` ended with ``error``. Raises nothing if the database does not answer:
        `record_earlier` repeats it."""
        if job.key not in self._unrecorded and (end := self._end_of(job, error)) is not None:
            await self._record(job, end)

    def _end_of(self, job: Job, error: BaseException) -> AttemptEnd | None:
        """How the attempt at ``job`` that raised ``error`` ended, by the table of the module. None: nothing is to be
        recorded."""
        if _is_failed_attempt(job, error):
            text = text_of_failure(error, private=self._handler.inbox.private)
            return AttemptEnd(text, uncounted=not job.start_is_counted)
        refunded = not job.was_called and isinstance(error, InProgress)  # by the inbox
        return AttemptEnd(None) if job.start_is_counted and not refunded else None

    async def _record(self, job: Job, end: AttemptEnd) -> bool:
        """Record ``end``. Returns False if the database did not answer."""
        self._unrecorded[job.key] = end  # first, so that it is repeated if this is cancelled
        try:
            await InboxTransaction(self._handler).run_once(partial(self._write, job, end))
        except Exception as error:
            log.warning("the end of an attempt at key %s is not recorded yet: %s", show(job.key), error)
            return False
        self._unrecorded.pop(job.key, None)
        return True

    async def _write(self, job: Job, end: AttemptEnd, session: BaseDriverSession) -> None:
        table, key = self._handler.inbox.table(session), self._handler.key_for(job)
        if end.error is None:
            await table.refund_attempt(session, key)
        else:
            await table.report_failure(session, key, end.error, uncounted=end.uncounted)
        await session.commit()


def _is_failed_attempt(job: Job, error: BaseException) -> bool:
    """Whether the handler of ``job`` failed with ``error``: not the database, nor what it waits for elsewhere."""
    if not job.was_called or not is_failure(error) or isinstance(error, DATABASE_ERRORS) or stops_worker(job, error):
        return False
    return not isinstance(job.route.decide_failure(error, job.attempt), RedeliverUncounted)


def stops_worker(job: Job, error: BaseException) -> bool:
    """Whether ``error``, raised for ``job``, is one that no retry can fix. A handler may raise the error of a table or
    a database of its own."""
    if job.was_called and isinstance(error, SchemaMissing | UnsafeStore):
        return False
    return isinstance(error, FATAL_ERRORS)
