"""Mode T: the messages of one handler run in transactions, one in each, or a batch in one."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeVar

from msgspec import Struct

from effectonce.contracts import ConnectionLost
from effectonce.core.error_text import describe_error
from effectonce.core.guarded_call.run import Run, current_run
from effectonce.core.run_sync import run_sync
from effectonce.core.tracing import continue_trace
from effectonce.errors import (
    AttemptsExhausted,
    ConfigurationError,
    InProgress,
    NotInTransaction,
    SchemaMissing,
    SyncAsyncMismatch,
    TransactionConflict,
    UnsafeStore,
    show,
)
from effectonce.guard.introspection import LAZY_TYPES, refuse_lazy
from effectonce.inbox.handler import TransactionalHandler
from effectonce.inbox.inbox import Inbox
from effectonce.inbox.table import InboxKey, StartCount
from effectonce.inbox.transaction import InboxTransaction
from effectonce.record import Answer
from effectonce.sessions import BaseDriverSession

from .causes import Poison
from .handler_pool import is_failure
from .jobs import Job
from .routes import HandlerRoute, RedeliverUncounted
from .transaction_batch import TransactionBatch

log = logging.getLogger("effectonce")

T = TypeVar("T")

MAX_ERROR_CHARS: Final = 300
"""How much of an attempt's error is kept, for the dead letter of a message whose attempts are used up."""

#: The database failed, not the handler: that is not an attempt at the message.
DATABASE_ERRORS: Final = (ConnectionLost, TransactionConflict)

#: What no retry can fix: the worker stops.
FATAL_ERRORS: Final = (SchemaMissing, UnsafeStore, SyncAsyncMismatch, NotInTransaction)


class WorkUnit(Struct, eq=False):
    """What runs at once: one job, or a batch. ``errors`` are what its jobs raised, in their order."""

    jobs: list[Job]
    errors: list[BaseException | None]

    @property
    def run(self) -> Run | None:
        return self.jobs[0].transaction_run

    def waits_for_failed(self, at: int) -> bool:
        """Whether an earlier job of the lane of job ``at`` has failed: then it has to wait with that."""
        lane = self.jobs[at].lane
        return any(
            error is not None and job.lane == lane for job, error in zip(self.jobs[:at], self.errors, strict=False)
        )


class AttemptEnd(Struct, frozen=True):
    """How an attempt that did not succeed ended. ``error``: with which failure; None: with none, so it does not count.
    ``uncounted``: its start was not counted."""

    error: str | None
    uncounted: bool = False


class TransactionRunner:
    """Runs the jobs of one handler. Made once per handler, for as long as the worker lives."""

    def __init__(self, route: HandlerRoute, inbox: Inbox, connect: Callable[[], Any]) -> None:
        self.route = route
        #: The worker's inbox, under the scope of the handler.
        self.inbox = inbox.for_scope(route.policy.scope, route.policy.retention_us)
        self._handle = _make_handle(route)

        options = self.inbox.handler(connect=connect, returns=None)
        self.plain = TransactionalHandler(options, self._handle, self.key_for)
        #: Counts each start, and commits that before its handler runs.
        self._counting = TransactionalHandler(options, self._handle, self.key_for, _check_start)
        self._unrecorded: dict[str, AttemptEnd] = {}  # by key: how an attempt ended, while the database is away

    def key_for(self, job: Job) -> InboxKey:
        """The key of the row of ``job``, whose key and fingerprints its reader has made."""
        return self.inbox.make_key(job.key, job.fingerprints)

    async def check(self) -> None:
        """Open a connection, check the database, and commit nothing. Raises `UnsafeStore` or `SchemaMissing`."""
        await self.run_beside(lambda session: session.commit())

    async def run_beside(self, work: Callable[[BaseDriverSession], Awaitable[T]]) -> T:
        """Do ``work`` in a transaction of its own, which it ends itself; in a thread where the driver is sync."""
        transaction = InboxTransaction(self.plain)
        if self.route.is_async:
            return await transaction.run_once(work)
        return await asyncio.to_thread(lambda: run_sync(transaction.run_once(work)))

    def execute(self, unit: WorkUnit) -> Any:
        """Run ``unit``; what its jobs raise goes into its ``errors``. Returns a coroutine for an async handler."""
        return self._execute(unit) if self.route.is_async else run_sync(self._execute(unit))

    async def _execute(self, unit: WorkUnit) -> None:
        if len(unit.jobs) > 1 and await self._execute_batch(unit):
            return
        for at, job in enumerate(unit.jobs):
            if unit.waits_for_failed(at):
                continue
            job.started_at = 0.0  # not called yet; a batch that was rolled back may have called it
            try:
                if job.key in self._unrecorded and not await self._record_end(job, self._unrecorded[job.key]):
                    raise ConnectionLost(
                        "the database does not answer: how an attempt ended could not be recorded; that is retried "
                        "before the next attempt"
                    )
                handler = self._counting if job.suspect else self.plain
                if self.route.is_async:
                    await handler.run_async(job)
                else:
                    handler.run_sync(job)
            except (Exception, asyncio.CancelledError) as error:
                if job.key not in self._unrecorded and (end := self._end_of(job, error)) is not None:
                    await self._record_end(job, end)
                if not is_failure(error):
                    raise
                unit.errors[at] = error

    async def _execute_batch(self, unit: WorkUnit) -> bool:
        """Run all of ``unit`` in one transaction. Returns whether the unit is settled: all of its jobs are committed,
        or all have failed because of the database. False: it was rolled back; redo its jobs one by one."""
        batch = TransactionBatch(self.plain)
        while True:
            try:
                for job in await batch.begin(unit.jobs):
                    # A sync handler runs in this very frame: a StopIteration that left a coroutine would become a
                    # RuntimeError.
                    pending = self._handle(batch.session.connection, job)
                    if pending is not None:
                        await pending
                    await batch.check_still_open(job)
                await batch.finish()
                return True
            except BaseException as error:
                if self.route.is_async and isinstance(error, GeneratorExit):
                    raise  # nothing can be awaited any more; the connection's end undoes it
                pause = await batch.abort(error)
                if pause is None:
                    if not is_failure(error):
                        raise
                    known = batch.translated_error or error
                    from_inbox = not any(job.was_called for job in unit.jobs)
                    if isinstance(known, ConnectionLost) or (from_inbox and isinstance(known, FATAL_ERRORS)):
                        unit.errors[:] = [known] * len(unit.jobs)
                        return True
                    if isinstance(error, ConfigurationError):
                        log.error("a batch is redone one by one: %s", error)
                    return False
            if self.route.is_async:
                await asyncio.sleep(pause)
            else:
                time.sleep(pause)  # noqa: ASYNC251  # on a thread of its own

    def _end_of(self, job: Job, error: BaseException) -> AttemptEnd | None:
        """How the attempt at ``job`` that raised ``error`` ended; None where there is nothing to record: no start of it
        is counted."""
        if _is_failed_attempt(job, error):
            text = type(error).__name__ if self.inbox.private else describe_error(error, MAX_ERROR_CHARS)
            return AttemptEnd(text, uncounted=not job.suspect)
        refunded = not job.was_called and isinstance(error, InProgress)  # by the inbox
        return AttemptEnd(None) if job.suspect and not refunded else None

    async def _record_end(self, job: Job, end: AttemptEnd) -> bool:
        """Record how the last attempt at ``job`` ended, so that only starts that never reported an outcome stay
        unreported. Returns False if the database did not answer; it is repeated before the next attempt."""
        self._unrecorded[job.key] = end
        try:
            await InboxTransaction(self.plain).run_once(partial(self._write_end, job, end))
        except Exception as error:
            log.warning("the end of an attempt at key %s is not recorded yet: %s", show(job.key), error)
            return False
        del self._unrecorded[job.key]
        return True

    async def _write_end(self, job: Job, end: AttemptEnd, session: BaseDriverSession) -> None:
        table, key = self.inbox.table(session), self.key_for(job)
        if end.error is None:
            await table.refund_attempt(session, key)
        else:
            await table.report_failure(session, key, end.error, uncounted=end.uncounted)
        await session.commit()

    async def forget_attempts(self, job: Job, session: BaseDriverSession) -> None:
        """Reset the count of the starts of ``job``, and commit."""
        await self.inbox.table(session).forget_attempts(session, self.key_for(job))
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


def _check_start(job: Job, starts: StartCount) -> None:
    """Let the attempt at ``job`` know its number. Raises `Poison` or `AttemptsExhausted` if it may not start."""
    retry, run = job.route.retry, job.transaction_run
    assert run is not None
    run.answer = Answer("claimed", attempts=starts.total)
    job.show_attempt(starts.total)
    if starts.unreported > retry.max_crashes:
        raise Poison(starts.total - 1)
    if retry.max_attempts is not None and starts.total > retry.max_attempts:
        last_error = "" if starts.last_error is None else f"the last error was {starts.last_error}; "
        raise AttemptsExhausted(
            f"all {starts.total - 1} attempts failed; {last_error}fix the cause, then redrive the message"
        )


def _make_handle(route: HandlerRoute) -> Callable[[Any, Job], Awaitable[None] | None]:
    """Make the function that runs the jobs of ``route``. The errors of the inbox call it by the handler's name."""
    handle: Callable[[Any, Job], Awaitable[None] | None]
    if route.is_async:

        async def handle(connection: Any, job: Job) -> None:
            current_run.set(job.transaction_run)
            continue_trace(job.message.headers)
            job.started_at = time.monotonic()
            await job.route.function(connection, job.message)

    else:

        def handle(connection: Any, job: Job) -> None:
            current_run.set(job.transaction_run)
            continue_trace(job.message.headers)
            job.started_at = time.monotonic()
            value = job.route.function(connection, job.message)
            if type(value) in LAZY_TYPES or hasattr(value, "__await__"):
                refuse_lazy(job.route.function, value)

    handle.__qualname__ = route.name
    return handle
