"""Mode T: the messages of one handler run in transactions, one in each, or a batch in one."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar, cast

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
from effectonce.guard.introspection import LAZY, refuse_lazy
from effectonce.inbox.handler import TransactionalHandler
from effectonce.inbox.inbox import Inbox
from effectonce.inbox.table import InboxKey
from effectonce.inbox.transaction import InboxTransaction
from effectonce.sessions import DriverAdapter

from .handler_pool import is_failure
from .jobs import Job
from .routes import HandlerRoute

log = logging.getLogger("effectonce")

T = TypeVar("T")

#: What no retry mends: the worker stops.
FATAL: Final = (SchemaMissing, UnsafeStore, SyncAsyncMismatch, NotInTransaction)


class RouteInbox(Inbox):
    """``inbox`` under the scope of a handler. It takes jobs where `Inbox` takes messages.

    It copies the attributes of ``inbox``, whatever they are: so a setting that is added to `Inbox` is copied, too.
    """

    def __init__(self, inbox: Inbox, scope: str, retention_us: int) -> None:
        self.__dict__.update(inbox.__dict__)
        self.scope = scope
        self.retention_us = retention_us

    def key_for(self, message: Job, payload: object = ...) -> InboxKey:
        return self.make_key(message.key, message.fingerprints)


class WorkUnit(Struct, eq=False):
    """What runs at once: one job, or a batch. ``errors`` are what its jobs raised, in their order."""

    jobs: list[Job]
    errors: list[BaseException | None]

    @property
    def run(self) -> Run | None:
        return self.jobs[0].run

    def waits_for_failed(self, at: int) -> bool:
        """Whether an earlier job of the lane of job ``at`` has failed: then it has to wait with that."""
        lane = self.jobs[at].lane
        return any(
            error is not None and job.lane == lane for job, error in zip(self.jobs[:at], self.errors, strict=False)
        )


class TransactionRunner:
    """Runs the jobs of one handler. Made once per handler, for as long as the worker lives."""

    def __init__(self, route: HandlerRoute, inbox: RouteInbox, connect: Callable[[], Any]) -> None:
        self.route = route
        self.inbox = inbox
        self._handle = _make_handle(route)

        def transactional(max_attempts: int | None) -> TransactionalHandler:
            return TransactionalHandler(
                inbox.handler(connect=connect, max_attempts=max_attempts, returns=None), self._handle
            )

        self.plain = transactional(None)
        # A redelivered message was already tried once, uncounted: allow it one crash fewer.
        self._handler_if_maybe_tried = transactional(route.retry.max_crashes)
        self._handler_if_redelivered = transactional(max(1, route.retry.max_crashes - 1))
        self._starts_to_forget: set[str] = set()  # keys whose start is counted, though its outcome is known

    async def check(self) -> None:
        """Whether the database can keep its promise."""
        await self.run_beside(lambda session: session.commit())

    async def run_beside(self, work: Callable[[DriverAdapter], Awaitable[T]]) -> T:
        """Do ``work`` in a transaction of its own, which it ends itself; in a thread where the driver is sync."""
        transaction = InboxTransaction(self.plain)
        if self.route.is_async:
            return await transaction.run_once(work)
        return await asyncio.to_thread(lambda: run_sync(transaction.run_once(work)))

    def _handler_for(self, job: Job) -> TransactionalHandler:
        if not job.suspect:
            return self.plain
        return self._handler_if_redelivered if job.delivery.attempt > 1 else self._handler_if_maybe_tried

    def run(self, unit: WorkUnit) -> Any:
        """Run ``unit``; what its jobs raise goes into its ``errors``. Returns a coroutine for an async handler."""
        return self._run(unit) if self.route.is_async else run_sync(self._run(unit))

    async def _run(self, unit: WorkUnit) -> None:
        if len(unit.jobs) > 1 and await self._run_batch(unit):
            return
        for at, job in enumerate(unit.jobs):
            if unit.waits_for_failed(at):
                continue
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
                if job.suspect and not isinstance(error, AttemptsExhausted) and job.key not in self._starts_to_forget:
                    await self._forget_start(job)
                if not is_failure(error):
                    raise
                unit.errors[at] = error

    async def _run_batch(self, unit: WorkUnit) -> bool:
        """Run all of ``unit`` in one transaction. Returns whether the unit is settled: all of its jobs are committed,
        or all have failed because of the database. False: it was rolled back; redo its jobs one by one."""
        batch = Batch(self.plain)
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
                    if isinstance(known, (ConnectionLost, *FATAL)):
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

    async def forget_attempts(self, job: Job, session: DriverAdapter) -> None:
        """Reset the count of the starts of ``job``, and commit."""
        await self.inbox.table(session).forget_attempts(session, self.inbox.key_for(job))
        await session.commit()


class Batch(InboxTransaction):
    """The transaction of several jobs. All of their rows are inserted first, then the handlers run. If a handler ends
    the transaction itself, `roll_back` deletes the rows that it committed for jobs whose effects it may not have
    committed."""

    _uncertain_keys: dict[Job, InboxKey]  # of the jobs whose effects a handler that ends it may not have committed

    async def begin(self, jobs: Sequence[Job]) -> list[Job]:
        """Begin, and insert one row per key, sorted by key so that two batches never deadlock. Returns the jobs whose
        rows are new, in their own order."""
        session = await self.open()
        inbox = cast(RouteInbox, self.handler.inbox)
        by_key = sorted(jobs, key=lambda job: job.key)
        keys = [inbox.key_for(job) for job in by_key]
        answers = await inbox.record_many(session, keys)
        firsts = {job: key for job, key, first in zip(by_key, keys, answers, strict=True) if first}
        self._uncertain_keys = {job: firsts[job] for job in jobs if job in firsts}
        await self.mark()
        return list(self._uncertain_keys)

    async def check_still_open(self, job: Job) -> None:
        """Check, when the handler of ``job`` has returned, that it left the transaction open. Raises
        `ConfigurationError` if not."""
        if await self.session.has_ended():
            for ran in list(self._uncertain_keys):  # these have run to their end: all of their effects are committed
                del self._uncertain_keys[ran]
                if ran is job:
                    break
            raise self._ended_error(job)

    async def finish(self) -> None:
        session = self.session
        if not await session.is_marked(release=True):
            raise self._ended_error(*list(self._uncertain_keys)[:1])
        self._is_marked = False
        await self.commit()

    async def roll_back(self) -> None:
        foreign = await self.handler_ended_transaction()
        await self.session.roll_back()
        if foreign:
            await self._forget_committed_rows(self.session)

    async def _forget_committed_rows(self, session: DriverAdapter) -> None:
        """A handler has ended the transaction. Delete the rows that it committed for jobs whose effects may not be
        committed: else their messages would be lost."""
        table = self.handler.inbox.table(session)
        await session.begin()
        committed = [key for key in self._uncertain_keys.values() if await table.is_ours(session, key)]
        await table.forget_many(session, committed)
        await session.commit()

    def _ended_error(self, *jobs: Job) -> ConfigurationError:
        name = jobs[0].route.name if jobs else self.handler.inbox.scope
        return ConfigurationError(
            f"{name} has ended the transaction that it shares with others (commit, rollback, begin, `with conn:`, or a "
            "statement that commits), which is the worker's to commit: leave that out, or use a savepoint"
        )


def _make_handle(route: HandlerRoute) -> Callable[[Any, Job], Awaitable[None] | None]:
    """Make the function that runs the jobs of ``route``. The errors of the inbox call it by the handler's name."""
    handle: Callable[[Any, Job], Awaitable[None] | None]
    if route.is_async:

        async def handle(connection: Any, job: Job) -> None:
            current_run.set(job.run)
            job.started_at = time.monotonic()
            await job.route.function(connection, job.message)

    else:

        def handle(connection: Any, job: Job) -> None:
            current_run.set(job.run)
            job.started_at = time.monotonic()
            value = job.route.function(connection, job.message)
            if type(value) in LAZY or hasattr(value, "__await__"):
                refuse_lazy(job.route.function, value)

    handle.__qualname__ = route.name
    return handle
