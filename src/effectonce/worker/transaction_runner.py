"""`TransactionRunner`: mode T runs the messages of one handler in transactions, one in each, or a batch in one.

A sync handler runs on a thread of its pool, where `run_sync` drives the same coroutines over a sync connection, which
never suspend; an async one runs on the event loop. Handlers are called in the frames of `_execute` and `_execute_batch`
themselves, or of plain functions that these call: a StopIteration that left a coroutine would become a RuntimeError.

If the process dies before a commit, the database undoes everything, and the broker redelivers. If it dies after a
commit and before the ack, the redelivery finds the row, and is acked without a run.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from msgspec import Struct

from effectonce.contracts import ConnectionLost
from effectonce.core.guarded_call.run import Run, current_run
from effectonce.core.run_sync import pause_thread, run_sync
from effectonce.core.tracing import continue_trace
from effectonce.errors import AttemptsExhausted, ConfigurationError, Poison
from effectonce.guard.introspection import LAZY_TYPES, refuse_lazy
from effectonce.inbox.handler import TransactionalHandler
from effectonce.inbox.inbox import Inbox
from effectonce.inbox.table import InboxKey, StartCount
from effectonce.inbox.transaction import InboxTransaction
from effectonce.record import Answer
from effectonce.sessions import BaseDriverSession

from .attempt_reports import FATAL_ERRORS, AttemptReports
from .handler_pool import is_failure
from .jobs import Job
from .routes import HandlerRoute
from .transaction_batch import TransactionBatch

log = logging.getLogger("effectonce")

T = TypeVar("T")


class WorkUnit(Struct, eq=False):
    """What runs at once: one job, or a batch. ``errors`` are what its jobs raised, in their order; None: it is
    committed, or it waits for one that failed (`waits_for_failed`)."""

    jobs: list[Job]
    errors: list[BaseException | None]

    @property
    def run(self) -> Run | None:
        return self.jobs[0].transaction_run

    def waits_for_failed(self, position: int) -> bool:
        """Whether an earlier job of the lane of the job at ``position`` has failed: then it has to wait with that."""
        lane = self.jobs[position].lane
        return any(
            error is not None and job.lane == lane
            for job, error in zip(self.jobs[:position], self.errors, strict=False)
        )


class TransactionRunner:
    """Runs the jobs of one handler. Made once per handler, for as long as the worker lives."""

    def __init__(self, route: HandlerRoute, inbox: Inbox, connect: Callable[[], Any]) -> None:
        self.route = route
        #: The worker's inbox, under the scope of the handler.
        self.inbox = inbox.for_scope(route.policy.scope, route.policy.retention_us)
        self._handle = _make_handle(route)
        self._pause = asyncio.sleep if route.is_async else pause_thread
        options = self.inbox.handler(connect=connect, returns=None)
        self.plain = TransactionalHandler(options, self._handle, self.key_for)
        #: Counts each start, and commits that before its handler runs.
        self._counting = TransactionalHandler(options, self._handle, self.key_for, _check_start)
        self._reports = AttemptReports(self.plain)

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
        for position, job in enumerate(unit.jobs):
            if unit.waits_for_failed(position):
                continue
            job.started_at = 0.0  # not called yet; a batch that was rolled back may have called it
            try:
                await self._reports.record_earlier(job)
                handler = self._counting if job.start_is_counted else self.plain
                if self.route.is_async:
                    await handler.run_async(job)
                else:
                    handler.run_sync(job)
            except (Exception, asyncio.CancelledError) as error:
                await self._reports.record(job, error)
                if not is_failure(error):
                    raise
                unit.errors[position] = error

    async def _execute_batch(self, unit: WorkUnit) -> bool:
        """Run all of ``unit`` in one transaction. Returns whether the unit is settled: all of its jobs are committed,
        or all have failed because of the database. False: it was rolled back; redo its jobs one by one."""
        batch = TransactionBatch(self.plain)
        while True:
            try:
                for job in await batch.begin(unit.jobs):
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
            await self._pause(pause)

    async def forget_attempts(self, job: Job, session: BaseDriverSession) -> None:
        """Reset the count of the starts of ``job``, and commit."""
        await self.inbox.table(session).forget_attempts(session, self.key_for(job))
        await session.commit()


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
    """Make the function that runs the jobs of ``route``. The errors of the inbox call it by the handler's name.

    It is sync or async as the handler is: by that the inbox decides which connections ``connect=`` must return.
    """
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
