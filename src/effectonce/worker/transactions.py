"""Mode T: the row that says "handled" and the effect are one transaction; the ack follows its commit.

    waiting ──► a transaction each, or up to 50 in one (``batch=True``) ──commit──► ack
                    └─ one of a batch failed: all of it is undone, and redone one by one

What has been delivered before may be what took a process down (F20): it never shares a transaction, only one such
message runs at a time, and its start is counted and committed before it. A redelivery that ended in good order is
uncounted, so what the count is left with are starts that ended without a word.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from typing import Final, cast

from effectonce.contracts import ConnectionLost
from effectonce.core.backoff import Backoff
from effectonce.core.events import Events
from effectonce.core.guarded_call.run import Run
from effectonce.core.store_runtime import StoreRuntime
from effectonce.errors import AttemptsExhausted, InProgress, PayloadMismatch, TransactionConflict
from effectonce.record import Answer

from .chores import Fail, either
from .jobs import Job, Poison, cause_of, mark
from .line import Line
from .plans import FATAL, Plans, Unit
from .routes import Route
from .slots import Slots

MAX_BATCH: Final = 50

#: The database's own affair, and no attempt of a message.
_AWAY = (ConnectionLost, TransactionConflict)


class Turns:
    """Whose turn it is among those that came before, on all lines of a worker: one would be counted for what another
    did to their process."""

    def __init__(self) -> None:
        self.alone: Job | None = None
        self.waiting: deque[tuple[Transactions, Job]] = deque()

    def end(self, jobs: Sequence[Job]) -> None:
        """These have ended. The next may run."""
        if self.alone in jobs:
            self.alone = None
            if self.waiting:
                line, job = self.waiting.popleft()
                line.resume(job)


class Transactions:
    """The discipline of a line whose handlers write into one database; see the module."""

    ending = 0  # a slot ends with the commit

    def __init__(
        self,
        line: Line,
        plans: Sequence[Plans],
        turns: Turns,
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
        self._turns = turns
        self._backoff = Backoff(f"queue {line.queue}, database")
        self._paused = False
        self._quiet = asyncio.Event()

    def waiting(self, job: Job) -> None:
        self._of[job.route].waiting.append(job)

    def resume(self, job: Job) -> None:
        """It has waited for its turn, which has come."""
        self._of[job.route].waiting.appendleft(job)
        self.start()

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
            elif self._turns.alone is None and not jobs and self._has_attempts(job):
                self._turns.alone = job
                jobs.append(job)
                break
            elif self._turns.alone is not None:
                self._turns.waiting.append((self, job))
            elif jobs:
                slots.waiting.appendleft(job)
                break
        for job in jobs:
            job.run, job.began = _run_of(job), 0.0
        return Unit(jobs, [None] * len(jobs)) if jobs else None

    def _may_share(self, job: Job) -> bool:
        """Whether it is delivered for the first time."""
        job.suspect = job.again
        return not job.again

    def _has_attempts(self, job: Job) -> bool:
        limit = job.route.retry.max_attempts
        if limit is None or job.tries <= limit:
            return True
        error = AttemptsExhausted("every allowed attempt was used")
        self._line.dead(job, cause_of(error, attempts=job.tries - 1))
        return False

    # -- ending

    def _ended(self, unit: Unit) -> None:
        """Commit by commit: what is done is acked, what failed waits, with what is behind it."""
        jobs, errors = unit.jobs, unit.errors
        for at, (job, error) in enumerate(zip(jobs, errors, strict=True)):
            others = [each for each in jobs[at + 1 :] if each.lane == job.lane]
            if unit.waits(at):
                continue  # it went back with the one that failed
            if self._line.events.hooks:
                self._tell(job, error)
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

    def _tell(self, job: Job, error: BaseException | None) -> None:
        ran = job.began > 0
        kind = "released" if error is not None else "completed" if ran else "replayed"
        if isinstance(error, PayloadMismatch | InProgress):
            kind = "mismatch" if isinstance(error, PayloadMismatch) else "in_progress"
        seconds = time.monotonic() - job.began if ran else 0.0
        why = "" if error is None else type(error).__name__
        self._line.events.emit(kind, job.route.policy.scope, job.key, job.tries, 0, seconds, why)

    def _raised(self, unit: Unit, error: BaseException) -> None:
        """It was cancelled, or ended this process: that says nothing about its messages."""
        if not isinstance(error, asyncio.CancelledError):
            self._fail(error)
        for at, job in enumerate(unit.jobs):
            if job in self._line.hand:
                others = [each for each in unit.jobs[at + 1 :] if each.lane == job.lane and each in self._line.hand]
                if others:
                    self._line.put_back(others)
                self._line.later(job, 0.0)
        self._moved(unit)

    def _failed(self, job: Job, error: BaseException) -> None:
        line, retry = self._line, job.route.retry
        attempt = job.attempt
        if isinstance(error, FATAL):
            self._fail(error)
            line.later(job, 0.0)
        elif isinstance(error, PayloadMismatch):
            line.dead(job, cause_of(error, attempts=attempt))
        elif isinstance(error, AttemptsExhausted):
            tried = max(attempt - 1, retry.max_crashes)
            text = f"its last attempt ended without a word, and it has been tried {tried} times"
            line.dead(job, cause_of(Poison(text), attempts=tried))
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
        self._turns.end(unit.jobs)
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


class _NoStore(Events):
    """What a `Run` asks its runtime for, where there is none: nothing is leased, so nothing is lost."""

    privacy = None
    monotonic = staticmethod(time.monotonic)


_no_store = cast(StoreRuntime, _NoStore())


def _run_of(job: Job) -> Run:
    policy = job.route.policy
    job.used = 0  # the broker has counted anew since the redrive
    answer = Answer("claimed", attempts=job.tries)
    run = Run(
        runtime=_no_store,
        policy=policy,
        key=job.key,
        stored_key=job.key,
        owner=b"",
        fingerprints=b"",
        parent=None,
        answer=answer,
        protected=False,
    )
    mark(job, run)
    return run
