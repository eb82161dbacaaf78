"""Mode T: the row that says "handled" and the effect are one transaction; the ack follows its commit.

    waiting ──► a transaction each, or up to 50 in one (``batch=True``) ──commit──► ack
                    └─ one of a batch failed: all of it is undone, and redone one by one

What has been delivered before may be what took a process down (F20): it never shares a transaction, only one such
message runs at a time, and its start is counted and committed before it. A redelivery that ended in good order is
uncounted, so what the count is left with are starts that ended without a word.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from msgspec import Struct

from effectonce.contracts import ConnectionLost
from effectonce.core.drive import drive
from effectonce.core.engine import Engine
from effectonce.core.flow import Run, running
from effectonce.errors import (
    AttemptsExhausted,
    InProgress,
    NotInTransaction,
    PayloadMismatch,
    SchemaMissing,
    TransactionConflict,
    UnsafeStore,
    WrongColour,
)
from effectonce.inbox.handler import Handling, Plan, Transaction
from effectonce.record import Answer

from .backoff import Backoff
from .chores import Fail, either
from .jobs import Job, Poison, cause_of, mark
from .line import Line
from .route_inbox import RouteInbox
from .routes import Route
from .slots import Slots

log = logging.getLogger("effectonce")

MAX_BATCH: Final = 50

#: What no retry mends: the worker stops.
_FATAL = (SchemaMissing, UnsafeStore, WrongColour, NotInTransaction)
#: The database's own affair, and no attempt of a message.
_AWAY = (ConnectionLost, TransactionConflict)


class Unit(Struct, eq=False):
    """What runs in one slot: one job, or a batch. ``errors`` are what its jobs raised, in their order."""

    jobs: list[Job]
    errors: list[BaseException | None]

    @property
    def run(self) -> Run | None:
        return self.jobs[0].run


class Plans:
    """How the messages of one handler are run in transactions; made once, used by every line that serves it."""

    def __init__(self, route: Route, inbox: RouteInbox, connect: Callable[[], Any]) -> None:
        self.route = route
        handle = _handle_async if route.is_async else _handle
        self.plain = Plan(_handling(inbox, connect, None), handle)
        self.counted = Plan(_handling(inbox, connect, max(1, route.retry.max_crashes - 1)), handle)

    async def check(self) -> None:
        """Whether the database can keep its promise; in a thread where its driver is sync."""
        transaction = Transaction(self.plain)
        if self.route.is_async:
            await _empty(transaction)
        else:
            await asyncio.to_thread(lambda: drive(_empty(transaction)))

    async def run_async(self, unit: Unit) -> None:
        jobs, errors = unit.jobs, unit.errors
        if len(jobs) > 1 and await self._batch_async(unit):
            return
        for at, job in enumerate(jobs):
            if not _after_failure(unit, at):
                try:
                    await (self.counted if job.suspect else self.plain).run_async(job)
                except Exception as error:
                    errors[at] = error
                    if job.suspect and not isinstance(error, AttemptsExhausted):
                        await _uncount(Transaction(self.plain), job)

    def run_sync(self, unit: Unit) -> None:
        jobs, errors = unit.jobs, unit.errors
        if len(jobs) > 1 and self._batch_sync(unit):
            return
        for at, job in enumerate(jobs):
            if not _after_failure(unit, at):
                try:
                    (self.counted if job.suspect else self.plain).run_sync(job)
                except Exception as error:
                    errors[at] = error
                    if job.suspect and not isinstance(error, AttemptsExhausted):
                        drive(_uncount(Transaction(self.plain), job))

    async def _batch_async(self, unit: Unit) -> bool:
        """All of ``unit`` in one transaction. False: it is undone, and to be redone one by one."""
        transaction = Transaction(self.plain)
        while True:
            try:
                for job in await _firsts(transaction, unit.jobs):
                    await _handle_async(transaction.session.connection, job)
                await transaction.commit()
                return True
            except GeneratorExit:
                raise  # nothing can be awaited any more; the connection's end undoes it
            except BaseException as error:
                pause = await transaction.abort(error)
                if pause is None and _redo(unit, transaction, error):
                    return unit.errors[0] is not None
            await asyncio.sleep(pause or 0)

    def _batch_sync(self, unit: Unit) -> bool:
        transaction = Transaction(self.plain)
        while True:
            try:
                for job in drive(_firsts(transaction, unit.jobs)):
                    _handle(transaction.session.connection, job)
                drive(transaction.commit())
                return True
            except BaseException as error:
                pause = drive(transaction.abort(error))
                if pause is None and _redo(unit, transaction, error):
                    return unit.errors[0] is not None
            time.sleep(pause or 0)


def _handling(inbox: RouteInbox, connect: Callable[[], Any], max_attempts: int | None) -> Handling:
    return inbox.handler(connect=connect, max_attempts=max_attempts, returns=None)


def _handle(connection: Any, job: Job) -> None:
    running.set(job.run)
    job.route.function(connection, job.message)


async def _handle_async(connection: Any, job: Job) -> None:
    running.set(job.run)
    await job.route.function(connection, job.message)


async def _firsts(transaction: Transaction, jobs: Sequence[Job]) -> list[Job]:
    """Begin, insert the rows of ``jobs``, each key once, in the order of keys that all batches lock in; the jobs that
    are to run, in their own order."""
    session = await transaction.open()
    inbox = cast(RouteInbox, transaction.plan.inbox)
    by_key = sorted(jobs, key=lambda job: job.key)
    answers = await inbox._first_many(session, [inbox._arrival(job, ...) for job in by_key])
    firsts = {job for job, first in zip(by_key, answers, strict=True) if first}
    return [job for job in jobs if job in firsts]


def _redo(unit: Unit, transaction: Transaction, error: BaseException) -> bool:
    """True, when a batch has failed. Where the database is why, all of its jobs have, and none is redone."""
    if not isinstance(error, Exception):
        raise error
    away = transaction.surfaces or error
    if isinstance(away, (ConnectionLost, *_FATAL)):
        unit.errors[:] = [away] * len(unit.jobs)
    return True


def _after_failure(unit: Unit, at: int) -> bool:
    """Whether an earlier one of its lane has failed: then it has to wait with that."""
    lane = unit.jobs[at].lane
    return any(error and job.lane == lane for job, error in zip(unit.jobs[:at], unit.errors, strict=False))


async def _empty(transaction: Transaction) -> None:
    try:
        await transaction.open()
        await transaction.commit()
    except Exception as error:
        await transaction.abort(error)
        if transaction.surfaces is not None:
            raise transaction.surfaces from error
        raise


async def _uncount(transaction: Transaction, job: Job) -> None:
    """It raised in good order: that start is not one without a word."""
    try:
        session = await transaction.open()
        inbox = transaction.plan.inbox
        await inbox._rows(session).uncount(session, inbox._arrival(job, ...))
        await transaction.commit()
    except Exception as error:
        await transaction.abort(error)
        log.warning("the start of an attempt at key %s stays counted: %s", job.key, error)


class Transactions:
    """The discipline of a line whose handlers write into one database; see the module."""

    ending = 0  # a slot ends with the commit

    def __init__(
        self,
        line: Line,
        plans: Sequence[Plans],
        fail: Fail,
    ) -> None:
        self._line = line
        self._fail = fail
        self._loop = asyncio.get_running_loop()
        self._of: dict[Route, Slots[Unit]] = {}
        for each in plans:
            run = each.run_async if each.route.is_async else each.run_sync
            self._of[each.route] = Slots(each.route, run, self._ended, self._raised, self._loop)
        self.slots = tuple(self._of.values())
        self._suspects: deque[Job] = deque()
        self._alone: Job | None = None
        self._backoff = Backoff(f"queue {line.queue}, database")
        self._paused = False
        self._quiet = asyncio.Event()

    def waiting(self, job: Job) -> None:
        self._of[job.route].waiting.append(job)

    def start(self) -> None:
        if self._paused or self._line.stopping:
            return
        for slots in self.slots:
            while slots.waiting and slots.room > 0 and (unit := self._unit(slots)) is not None:
                slots.taken += 1
                slots.ready.append(unit)
            if slots.ready:
                slots.wake()

    def _unit(self, slots: Slots[Unit]) -> Unit | None:
        """What is run next: all that may share a transaction, or one alone."""
        jobs: list[Job] = []
        most = MAX_BATCH if slots.route.batch else 1
        while slots.waiting and len(jobs) < most:
            job = slots.waiting.popleft()
            if job.stale:
                self._line.drop(job)
            elif self._may_share(job):
                jobs += self._line.with_those_behind(job, most - len(jobs), self._may_share)
            elif self._alone is None and not jobs and self._has_attempts(job):
                self._alone = job
                jobs.append(job)
                break
            elif self._alone is not None:
                self._suspects.append(job)
            elif jobs:
                slots.waiting.appendleft(job)
                break
        for job in jobs:
            job.run = _run_of(job)
        return Unit(jobs, [None] * len(jobs)) if jobs else None

    def _may_share(self, job: Job) -> bool:
        """Whether it is delivered for the first time."""
        job.suspect = job.again
        return not job.again

    def _has_attempts(self, job: Job) -> bool:
        limit = job.route.retry.max_attempts
        if limit is None or job.delivery.attempt <= limit:
            return True
        error = AttemptsExhausted("every allowed attempt was used")
        self._line.dead(job, cause_of(error, attempts=job.delivery.attempt - 1))
        return False

    # -- ending

    def _ended(self, unit: Unit) -> None:
        """Commit by commit: what is done is acked, what failed waits, with what is behind it."""
        jobs, errors = unit.jobs, unit.errors
        for at, (job, error) in enumerate(zip(jobs, errors, strict=True)):
            others = [each for each in jobs[at + 1 :] if each.lane == job.lane]
            if _after_failure(unit, at):
                continue  # it went back with the one that failed
            if error is None:
                if others:
                    self._line.done_before_others(job)
                else:
                    self._line.done([job])
                continue
            if others:
                self._line.put_back(others)
            self._failed(job, error)
        if not any(errors):
            self._backoff.worked()
        self._moved(unit)

    def _raised(self, unit: Unit, error: BaseException) -> None:
        """It was cancelled, or ended this process: that says nothing about its messages."""
        if not isinstance(error, asyncio.CancelledError):
            self._fail(error)
        for job in unit.jobs:
            if job in self._line.hand:
                self._line.later(job, 0.0)
        self._moved(unit)

    def _failed(self, job: Job, error: BaseException) -> None:
        line, retry = self._line, job.route.retry
        attempt = job.attempt
        if isinstance(error, _FATAL):
            self._fail(error)
            line.later(job, 0.0)
        elif isinstance(error, PayloadMismatch):
            line.dead(job, cause_of(error, attempts=attempt))
        elif isinstance(error, AttemptsExhausted):
            text = f"its last attempt ended without a word, and this is delivery number {attempt}"
            line.dead(job, cause_of(Poison(text), attempts=attempt - 1))
        elif isinstance(error, InProgress):
            line.later(job, error.retry_after)
        elif isinstance(error, _AWAY):
            self._of[job.route].waiting.appendleft(job)
            self._pause(error)
        elif isinstance(error, job.route.policy.permanent) or (delay := retry.after(error, attempt)) is None:
            permanent = isinstance(error, job.route.policy.permanent)
            why = "permanent-failure" if permanent else "refused" if retry.refuses(error) else "attempts-exhausted"
            line.dead(job, cause_of(error, why, attempts=attempt))
        else:
            line.later(job, delay, tried=True)

    def _pause(self, error: BaseException) -> None:
        if not self._paused:
            self._paused = True
            self._loop.call_later(self._backoff.failed(error), self._resume)

    def _resume(self) -> None:
        self._paused = False
        self.start()

    def _moved(self, unit: Unit) -> None:
        if self._alone in unit.jobs:
            self._alone = None
            if self._suspects:
                job = self._suspects.popleft()
                self._of[job.route].waiting.appendleft(job)
        self.start()
        if self._line.stopping and not any(slots.taken for slots in self.slots):
            self._quiet.set()

    async def stop(self, over: asyncio.Event) -> None:
        for slots in self.slots:
            while slots.ready:
                slots.taken -= 1
                for job in slots.ready.pop().jobs:
                    if job in self._line.hand:
                        self._line.later(job, 0.0)
        if any(slots.taken for slots in self.slots):
            await either(self._quiet, over)
        for slots in self.slots:
            await slots.close()


class _NoStore:
    """What a `Run` asks its engine for, where there is none: nothing is leased, so nothing is lost."""

    hooks = ()
    privacy = None
    monotonic = staticmethod(time.monotonic)


_no_store = cast(Engine, _NoStore())


def _run_of(job: Job) -> Run:
    policy = job.route.policy
    job.used = 0  # the broker has counted anew since the redrive
    answer = Answer("claimed", attempts=max(1, job.delivery.attempt))
    run = Run(_no_store, policy, policy.scope, job.key, job.key, b"", None, answer=answer, protected=False)
    mark(run, job.delivery.packet.headers)
    return run
