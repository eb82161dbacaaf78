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
from effectonce.core.guarded_call.run import Run, current_run
from effectonce.core.run_sync import run_sync
from effectonce.errors import (
    AttemptsExhausted,
    ConfigurationError,
    NotInTransaction,
    SchemaMissing,
    SyncAsyncMismatch,
    UnsafeStore,
    show,
)
from effectonce.guard.introspection import LAZY_TYPES, refuse_lazy
from effectonce.inbox.handler import TransactionalHandler
from effectonce.inbox.inbox import Inbox
from effectonce.inbox.table import InboxKey
from effectonce.inbox.transaction import InboxTransaction
from effectonce.sessions import BaseDriverSession

from .handler_pool import is_failure
from .jobs import Job
from .routes import HandlerRoute
from .transaction_batch import TransactionBatch

log = logging.getLogger("effectonce")

T = TypeVar("T")

#: What no retry mends: the worker stops.
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


class TransactionRunner:
    """Runs the jobs of one handler. Made once per handler, for as long as the worker lives."""

    def __init__(self, route: HandlerRoute, inbox: Inbox, connect: Callable[[], Any]) -> None:
        self.route = route
        #: The worker's inbox, under the scope of the handler.
        self.inbox = inbox.for_scope(route.policy.scope, route.policy.retention_us)
        self._handle = _make_handle(route)

        def transactional(max_attempts: int | None) -> TransactionalHandler:
            return TransactionalHandler(
                self.inbox.handler(connect=connect, max_attempts=max_attempts, returns=None), self._handle, self.key_for
            )

        self.plain = transactional(None)
        # A redelivered message was already tried once, uncounted: allow it one crash fewer.
        self._handler_if_maybe_tried = transactional(route.retry.max_crashes)
        self._handler_if_redelivered = transactional(max(1, route.retry.max_crashes - 1))
        self._starts_to_forget: set[str] = set()  # keys whose start is counted, though its outcome is known

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

    def _handler_for(self, job: Job) -> TransactionalHandler:
        if not job.suspect:
            return self.plain
        return self._handler_if_redelivered if job.delivery.attempt > 1 else self._handler_if_maybe_tried

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
                if job.key in self._starts_to_forget and not await self._forget_start(job):
                    raise ConnectionLost(
                        "the database does not answer: the count of a started attempt could not be reset; that is "
                        "retried before the next attempt"
                    )
                if self.route.is_async:
                    await self._handler_for(job).run_async(job)
                else:
                    self._handler_for(job).run_sync(job)
            except (Exception, asyncio.CancelledError) as error:
                refused = isinstance(error, AttemptsExhausted) and not job.was_called
                if job.suspect and not refused and job.key not in self._starts_to_forget:
                    await self._forget_start(job)
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

    async def _forget_start(self, job: Job) -> bool:
        """Reset the count of the starts of ``job``, since its outcome is known: only starts that never reported one
        stay counted. Returns False if the database did not answer; it is repeated before the next attempt."""
        self._starts_to_forget.add(job.key)
        try:
            await InboxTransaction(self.plain).run_once(partial(self.forget_attempts, job))
        except Exception as error:
            log.warning("the start of an attempt at key %s stays counted: %s", show(job.key), error)
            return False
        self._starts_to_forget.discard(job.key)
        return True

    async def forget_attempts(self, job: Job, session: BaseDriverSession) -> None:
        """Reset the count of the starts of ``job``, and commit."""
        await self.inbox.table(session).forget_attempts(session, self.key_for(job))
        await session.commit()


def _make_handle(route: HandlerRoute) -> Callable[[Any, Job], Awaitable[None] | None]:
    """Make the function that runs the jobs of ``route``. The errors of the inbox call it by the handler's name."""
    handle: Callable[[Any, Job], Awaitable[None] | None]
    if route.is_async:

        async def handle(connection: Any, job: Job) -> None:
            current_run.set(job.transaction_run)
            job.started_at = time.monotonic()
            await job.route.function(connection, job.message)

    else:

        def handle(connection: Any, job: Job) -> None:
            current_run.set(job.transaction_run)
            job.started_at = time.monotonic()
            value = job.route.function(connection, job.message)
            if type(value) in LAZY_TYPES or hasattr(value, "__await__"):
                refuse_lazy(job.route.function, value)

    handle.__qualname__ = route.name
    return handle
