"""Mode T: the row that says "handled" and the effect are one transaction; the ack follows its commit.

    waiting ──► a transaction each, or up to 50 in one (``batch=True``) ──commit──► ack
                    └─ one of a batch failed: all of it is undone, and redone one by one

A message that was delivered before may be what took a process down (F20). It never shares a transaction, only one such
message runs at a time, and its start is counted and committed before it runs. A first delivery is counted only if it
fails, so one that succeeds costs its own transaction and no other. What is counted is starts, not deliveries: a message
that a dying process had only prefetched has used no attempt (F74), on any broker, and after a restart, too.

Everything runs on one event loop, except what `TransactionRunner` runs on the threads of sync handlers. A unit belongs
to its pool from `add_ready` until `_settle` or `_give_back` is called with it. There each of its jobs is settled, put
back behind the first one of its lane, or goes back with the one that failed before it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Final

from effectonce.core.events import Events
from effectonce.core.guarded_call.run import Run
from effectonce.errors import AttemptsExhausted, InProgress, PayloadMismatch, Poison
from effectonce.inbox.events import kind_of_failure
from effectonce.record import Answer

from .attempt_reports import DATABASE_ERRORS, stops_worker
from .background_tasks import ReportFailure, wait_until_either_is_set
from .handler_pool import HandlerPool
from .jobs import Job
from .outage_pause import Pause
from .quarantine import SuspectTurns
from .queue_consumer import QueueConsumer
from .routes import GiveUp, HandlerRoute, RedeliverUncounted
from .transaction_runner import TransactionRunner, WorkUnit

MAX_BATCH: Final = 50


class TransactionExecutor:
    """Runs the jobs of one queue in transactions of one database."""

    def __init__(
        self,
        consumer: QueueConsumer,
        runners: Sequence[TransactionRunner],
        turns: SuspectTurns,
        fail: ReportFailure,
    ) -> None:
        self._consumer = consumer
        self._fail = fail
        self._loop = asyncio.get_running_loop()
        self._pool_of: dict[HandlerRoute, HandlerPool[WorkUnit]] = {
            runner.route: HandlerPool(
                runner.route,
                runner.execute,
                on_success=self._settle,
                on_error=self._give_back,
                fail=fail,
                loop=self._loop,
            )
            for runner in runners
        }
        self.pools = tuple(self._pool_of.values())
        self._turns = turns
        self._pause = Pause(f"queue {consumer.queue}, database", self.start)
        self._idle = asyncio.Event()

    def enqueue(self, job: Job) -> None:
        job.must_run_alone = job.redelivered
        self._pool_of[job.route].waiting.append(job)

    def resume(self, job: Job) -> None:
        """The turn of a suspect has come."""
        self._pool_of[job.route].waiting.appendleft(job)
        self.start()

    def on_suspect_left(self, job: Job) -> None:
        pass  # its turn ends with its unit

    def start(self) -> None:
        if self._pause.active or self._consumer.stopping:
            return
        for pool in self.pools:
            while pool.waiting and pool.free_slots > 0 and (unit := self._next_unit(pool)) is not None:
                pool.add_ready(unit)
            if pool.ready:
                pool.wake()

    def _next_unit(self, pool: HandlerPool[WorkUnit]) -> WorkUnit | None:
        """What runs next: all that may share a transaction, or one suspect alone."""
        jobs: list[Job] = []
        limit = MAX_BATCH if pool.route.batch else 1
        while pool.waiting and len(jobs) < limit:
            job = pool.waiting.popleft()
            if job.stale:
                self._consumer.drop(job)
            elif not job.must_run_alone:
                jobs += self._consumer.lanes.take_batchable(job, limit - len(jobs))
            elif self._turns.is_taken:
                self._turns.wait(job, self.resume)
            elif jobs:  # the suspect starts when the jobs of this unit have ended
                pool.waiting.appendleft(job)
                break
            else:
                self._turns.take(job)
                jobs.append(job)
                break
        for job in jobs:
            job.transaction_run, job.started_at = _make_run(job), 0.0
        return WorkUnit(jobs, [None] * len(jobs)) if jobs else None

    # -- ending

    def _settle(self, unit: WorkUnit) -> None:
        """Settle job by job: what is committed is acked, what failed waits, with what is behind it."""
        for position, (job, error) in enumerate(zip(unit.jobs, unit.errors, strict=True)):
            if unit.waits_for_failed(position):
                continue  # it went back with the one that failed
            if self._consumer.events.hooks:
                self._emit(job, error)
            if error is not None:
                self._put_back_others(unit, position)
                self._settle_failed(job, error)
            elif _others_in_lane(unit, position):
                self._consumer.ack_batched(job)
            else:
                self._consumer.ack([job])
        if not any(unit.errors):
            self._pause.server_answered()
        self._make_progress(unit)

    def _emit(self, job: Job, error: BaseException | None) -> None:
        ran = job.was_called
        done = "first" if ran else "duplicate"
        if isinstance(error, Poison) and not ran:
            kind = "exhausted"
        else:
            kind = done if error is None else kind_of_failure(error, was_called=ran)
        seconds = time.monotonic() - job.started_at if ran else 0.0
        why = "" if error is None else type(error).__name__
        self._consumer.events.emit(
            kind, job.route.policy.scope, job.key, attempt=job.attempt, seconds=seconds, detail=why
        )

    def _give_back(self, unit: WorkUnit, error: BaseException) -> None:
        """``unit`` was cancelled, or ended this process: its messages are not to blame, and are redelivered."""
        if not isinstance(error, asyncio.CancelledError):
            self._fail(error)
        self._redeliver_unit(unit)
        self._make_progress(unit)

    def _redeliver_unit(self, unit: WorkUnit) -> None:
        """Give the jobs of ``unit`` back untried, each with what is behind it in its lane, in their order."""
        for position, job in enumerate(unit.jobs):
            if job in self._consumer.in_flight:  # else it went back with an earlier one, or at the end of the drain
                self._put_back_others(unit, position)
                self._consumer.redeliver(job, 0.0)

    def _put_back_others(self, unit: WorkUnit, position: int) -> None:
        """Let the jobs that share the lane of the one at ``position``, and come after it, wait behind it again."""
        if others := _others_in_lane(unit, position):
            self._consumer.lanes.put_back(others)

    def _settle_failed(self, job: Job, error: BaseException) -> None:
        """Decide what a failed job needs: stop the worker, retry, wait for the database, or a dead letter."""
        consumer, attempt = self._consumer, job.attempt
        from_inbox = not job.was_called
        if stops_worker(job, error):
            self._fail(error)
            consumer.redeliver(job, 0.0)
        elif from_inbox and isinstance(error, PayloadMismatch):
            consumer.dead_letter(job, error, "payload-mismatch", attempt)
        elif from_inbox and isinstance(error, Poison):
            consumer.dead_letter(job, error, "poison", error.attempts)
        elif from_inbox and isinstance(error, AttemptsExhausted):
            consumer.dead_letter(job, error, "attempts-exhausted", attempt - 1)
        elif from_inbox and isinstance(error, InProgress):
            consumer.redeliver_uncounted(job, error)
        elif isinstance(error, DATABASE_ERRORS):
            self._pool_of[job.route].waiting.appendleft(job)
            self._pause.begin(error)
        elif isinstance(decision := job.route.decide_failure(error, attempt), GiveUp):
            consumer.dead_letter(job, error, decision.why, attempt)
        elif isinstance(decision, RedeliverUncounted):
            consumer.redeliver_uncounted(job, decision.error)
        else:
            consumer.retry(job, error, decision.seconds)

    def _make_progress(self, unit: WorkUnit) -> None:
        """``unit`` has ended: start the next suspect and waiting jobs; while draining, notice when nothing runs."""
        self._turns.release(unit.jobs)
        self.start()
        if self._consumer.stopping and not any(pool.claimed_count for pool in self.pools):
            self._idle.set()

    async def stop(self, drain_ended: asyncio.Event) -> None:
        for pool in self.pools:
            for unit in pool.take_ready():
                self._redeliver_unit(unit)
        if any(pool.claimed_count for pool in self.pools):
            await wait_until_either_is_set(self._idle, drain_ended)
        for pool in self.pools:
            await pool.close()
        self._pause.close()


def _others_in_lane(unit: WorkUnit, position: int) -> list[Job]:
    """The jobs of ``unit`` that come after the one at ``position``, in its lane."""
    lane = unit.jobs[position].lane
    return [other for other in unit.jobs[position + 1 :] if other.lane == lane]


class _TransactionRuntime(Events):
    """A `RunRuntime` with a clock, and without hooks: the executor emits the events of its transactions itself."""

    monotonic = staticmethod(time.monotonic)


_runtime = _TransactionRuntime()


def _make_run(job: Job) -> Run:
    """Make the run that `current()` returns in the handler of ``job``. It holds no lease that could be lost."""
    return Run(
        runtime=_runtime,
        policy=job.route.policy,
        key=job.key,
        stored_key=job.key,
        parent=None,
        answer=Answer("claimed", attempts=1),
        protected=False,
        redriven=job.redriven,
        bypassing=job.bypassing,
    )
