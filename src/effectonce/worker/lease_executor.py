"""Modes L and S: claim, run, record, and only then ack. Claims and completions go to the store in blocks.

    waiting ──claim──► ready ──handler──► succeeded ──complete──► recorded ──► ack
               │                    └───► raised ──release──► redelivered, or dead
               └─► done: ack; in progress: redelivered; in doubt, failed, mismatch: dead

While the store does not answer, nothing is acked (F36: a store that is away must not lose or double anything). Claims
without an answer stay in flight and are repeated by the same owner. So are completions; the store fences them, which
makes repeating them always right.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from effectonce.core.guarded_call import begin, finish
from effectonce.core.store_runtime import release
from effectonce.errors import (
    AttemptsExhausted,
    BrokerUnavailable,
    ConfigurationError,
    EffectOnceError,
    LeaseLost,
    StoreUnavailable,
    show,
)
from effectonce.message import Message
from effectonce.record import Answer, Claim, Look, Reply
from effectonce.store import Store
from effectonce.values.backoff import Backoff

from . import forwarding
from .background_tasks import BackgroundTasks, Fail, wait_for_either
from .handler_pool import HandlerPool, is_failure
from .jobs import Job, Poison, cause_of, mark_redriven
from .quarantine import Quarantine
from .queue_consumer import QueueConsumer
from .routes import Route

log = logging.getLogger("effectonce")

MIN_DUPLICATE_DELAY_S: Final = 0.05
"""The shortest delay of a duplicate whose first delivery is running."""

UNRECORDED_DELAY_S: Final = 1.0
"""After how long a message comes again whose success could not be recorded."""

MAX_BLOCKS_IN_FLIGHT: Final = 2
"""How many blocks of claims, and of completions, are on their way to the store at once. What comes meanwhile goes out
together in the next block: many small ones would cost more than they save."""

Publish = Callable[[str, list[Message[Any]]], Awaitable[None]]

#: Why a claim was refused for good, as a dead letter says it.
_REFUSAL_CODES: Final = {
    "failed": "permanent-failure",
    "exhausted": "attempts-exhausted",
    "in_doubt": "in-doubt",
    "mismatch": "payload-mismatch",
}


class LeaseExecutor:
    """Runs the jobs of one queue under leases of a store; see the module."""

    def __init__(
        self,
        consumer: QueueConsumer,
        routes: Sequence[Route],
        store: Store,
        quarantine: Quarantine,
        publish: Publish,
        fail: Fail,
    ) -> None:
        self._consumer = consumer
        self._publish = publish
        self._store = store
        self._runtime = store.runtime
        self._client = self._runtime.async_client()
        self._quarantine = quarantine
        self._fail = fail
        self._loop = asyncio.get_running_loop()
        self._pool_of: dict[Route, HandlerPool[Job]] = {
            route: HandlerPool(
                route,
                forwarding.run_handler if route.to else _run_handler,
                on_success=self._queue_completion,
                on_error=self._settle_failure,
                loop=self._loop,
            )
            for route in routes
        }
        self.pools = tuple(self._pool_of.values())
        self._succeeded: list[Job] = []  # their handlers have returned; to be recorded
        self.finishing = 0
        self.backoff = Backoff(f"queue {consumer.queue}, {store!r}")
        self._paused = False
        self._closed = False
        self._starting = False
        self._claim_blocks = 0  # on their way to the store
        self._completion_blocks = 0
        self._background = BackgroundTasks(fail, self._make_progress)
        self._idle = asyncio.Event()
        quarantine.join(self)
        consumer.on_left = quarantine.release

    @property
    def busy(self) -> int:
        """How many jobs are claimed, as far as this process knows."""
        return sum(pool.taken for pool in self.pools) + self.finishing

    # -- claim

    def enqueue(self, job: Job) -> None:
        self._pool_of[job.route].waiting.append(job)

    def start(self) -> None:
        if self._starting:  # a store in this process answers at once, and this is called again meanwhile
            return
        self._starting = True
        try:
            while self._may_claim() and (jobs := self._take_waiting()):
                self._claim(jobs)
        finally:
            self._starting = False

    def _may_claim(self) -> bool:
        held_up = self._paused or self._consumer.stopping or self._quarantine.closed
        return not held_up and self._claim_blocks < MAX_BLOCKS_IN_FLIGHT

    def _take_waiting(self) -> list[Job]:
        """As many waiting jobs as there is room for."""
        jobs: list[Job] = []
        for pool in self.pools:
            room = pool.room
            while pool.waiting and room > 0:
                job = pool.waiting.popleft()
                if job.stale:
                    self._consumer.drop(job)
                else:
                    room -= 1
                    pool.taken += 1
                    jobs.append(job)
        return jobs

    def start_alone(self, job: Job) -> bool:
        """Claim a suspect, which the quarantine has kept until nothing else runs."""
        if self._consumer.stopping:  # it is given back with all that is in flight
            return False
        if job.stale:
            self._consumer.drop(job)
            return False
        self._pool_of[job.route].taken += 1
        self._claim([job])
        return True

    def _claim(self, jobs: list[Job]) -> None:
        requests: list[Claim | Look] = []
        for job in jobs:
            # A claim that was sent before, and not answered, is repeated by the same owner: if it was granted, its
            # lease began then. Where that lease is over by now, another owner claims.
            if job.run is None or job.run.lease_lost:
                job.run = begin.prepare(self._runtime, job.route.policy, job.key, job.fingerprints)
                mark_redriven(job, job.run)
            requests.append(job.run.claim_request())
        ended_before = [pool.ended for pool in self.pools]
        self._claim_blocks += 1
        self._background.call_with(
            self._client.claim_block(requests),
            lambda replies: self._handle_answers(jobs, requests, ended_before, replies),
        )

    def _handle_answers(
        self, jobs: list[Job], requests: list[Claim | Look], ended_before: list[int], replies: list[Reply]
    ) -> None:
        self._claim_blocks -= 1
        if self._closed:  # too late: what was granted is given back
            for request, reply in zip(requests, replies, strict=True):
                if isinstance(request, Claim) and isinstance(reply, Answer) and reply.kind == "claimed":
                    self._release(request, reply)
            return
        for job, request, reply in zip(jobs, requests, replies, strict=True):
            pool = self._pool_of[job.route]
            if self._handle_answer(job, request, reply):
                pool.ready.append(job)
            else:
                pool.taken -= 1
        for pool, before in zip(self.pools, ended_before, strict=True):
            pool.adapt_claims_ahead(pool.ended - before)
            if pool.ready:
                pool.wake()
        if not self._paused:
            self.backoff.worked()
        self._make_progress()

    def _handle_answer(self, job: Job, request: Claim | Look, reply: Reply) -> bool:
        """Whether ``job`` is to run here and now; where it is not, it is settled."""
        if not isinstance(reply, Answer):
            self._handle_no_answer(job, reply)
            return False
        if reply.kind not in ("claimed", "absent"):
            self._settle_refused(job, reply)
            return False
        if reply.attempts != 1 and not self._may_run_again(job, request, reply):
            return False
        assert job.run is not None
        begin.take_reply(job.run, reply)
        return True

    def _may_run_again(self, job: Job, request: Claim | Look, answer: Answer) -> bool:
        """Whether a job that was granted, and may have been tried before, is to run now; where not, it is settled."""
        retry = job.route.retry
        if not isinstance(request, Claim):  # mode S, which counts nothing: the broker's count has to do
            attempts = job.broker_attempt
            if retry.max_attempts is not None and attempts > retry.max_attempts:
                self._give_up_exhausted(job, attempts - 1)
                return False
            return True
        attempts = answer.attempts - job.attempts_before_redrive
        if answer.lapsed:
            if attempts > retry.max_crashes:
                # Not released: its lease lapses, so that its duplicates are recognised as poison, too.
                text = f"its last attempt ended without a word, and it has been tried {attempts - 1} times"
                self._give_up(job, Poison(text), attempts - 1)
                return False
            if not job.suspect:
                # Given back until it can run alone: should this process end over another, it is not counted for it.
                job.suspect, job.run = True, None
                self._release(request, answer, lambda: self._quarantine.add(self, job))
                return False
        elif retry.max_attempts is not None and attempts > retry.max_attempts:
            self._release(request, answer)
            self._give_up_exhausted(job, attempts - 1)
            return False
        return True

    def _release(self, claim: Claim, answer: Answer, then: Callable[[], None] | None = None) -> None:
        """Release a granted claim whose work never starts."""
        self._background.call_with(
            self._client.settle_block([release(claim, answer)]), lambda replies: then() if then is not None else None
        )

    def _settle_refused(self, job: Job, answer: Answer) -> None:
        """The claim was refused: the job is done, in progress elsewhere, or refused for good."""
        run = job.run
        assert run is not None
        job.run = None
        try:
            begin.take_reply(run, answer)
        except Exception as error:
            if answer.kind == "in_progress":
                self._consumer.redeliver(job, max(answer.retry_after, MIN_DUPLICATE_DELAY_S))
                return
            if answer.kind != "done":  # done, and its result cannot be read: nobody here asks for that
                attempts = answer.attempts - job.attempts_before_redrive
                self._give_up(job, error, attempts, _REFUSAL_CODES[answer.kind])
                return
        if self._consumer.tracer is not None:
            self._consumer.tracer.skipped(self._consumer.queue, job.message, run)
        job.outgoing = run.value if job.route.to else None
        self._forward_or_ack([job])

    def _handle_no_answer(self, job: Job, reply: Reply) -> None:
        """The store did not answer, or not sensibly. The job keeps its place in the queue, and its owner."""
        assert isinstance(reply, Exception)
        if isinstance(reply, ConfigurationError):
            self._fail(reply)
        if not isinstance(reply, StoreUnavailable | ConfigurationError):
            log.error("queue %s: the claim of key %s failed: %r", self._consumer.queue, show(job.key), reply)
            self._consumer.redeliver(job, job.route.retry.first)
        elif job.suspect:
            self._consumer.redeliver(job, UNRECORDED_DELAY_S)
            self._pause(reply)
        else:
            self._pool_of[job.route].waiting.appendleft(job)
            self._pause(reply)

    def _pause(self, error: Exception) -> None:
        """Ask the store nothing for a while."""
        if not self._paused:
            self._paused = True
            self._loop.call_later(self.backoff.failed(error), self._resume)

    def _resume(self) -> None:
        self._paused = False
        self._complete()
        self.start()
        self._quarantine.advance()

    # -- record

    def _queue_completion(self, job: Job) -> None:
        """The handler of ``job`` has returned."""
        if job.run is not None:
            job.run.stop_clock()
        self.finishing += 1
        self._succeeded.append(job)
        if len(self._succeeded) == 1:
            self._loop.call_soon(self._complete)

    def _complete(self) -> None:
        """Record all that has succeeded, in one block."""
        if not self._succeeded or self._paused or self._completion_blocks >= MAX_BLOCKS_IN_FLIGHT:
            return
        self._completion_blocks += 1
        self._consumer.make_room()
        jobs, self._succeeded = self._succeeded, []
        completions = []
        for job in jobs:
            run = job.run
            assert run is not None
            completions.append(finish.completion_of(run, finish.add_trace(run, job.result)))
        self._background.call_with(
            self._client.settle_block(completions), lambda replies: self._handle_recorded(jobs, replies)
        )
        self.start()

    def _handle_recorded(self, jobs: list[Job], replies: list[Reply]) -> None:
        self._completion_blocks -= 1
        recorded: list[Job] = []
        for job, reply in zip(jobs, replies, strict=True):
            run = job.run
            assert run is not None
            try:
                finish.confirm_reply(run, reply)
            except Exception as error:
                self._handle_unrecorded(job, error)
            else:
                self._runtime.leased_runs.discard(run)
                recorded.append(job)
        self.finishing -= len(recorded)
        self._forward_or_ack(recorded)
        if not self._paused:
            self.backoff.worked()
        self._complete()
        self._make_progress()

    def _handle_unrecorded(self, job: Job, error: Exception) -> None:
        run = job.run
        assert run is not None
        if isinstance(error, StoreUnavailable) or not (isinstance(error, LeaseLost) or run.lease_lost):
            self._succeeded.append(job)  # asked again: the store knows its own
            self._pause(error)
            return
        log.warning("queue %s: a success was not recorded: %s", self._consumer.queue, error)
        self._consumer.redeliver(job, UNRECORDED_DELAY_S)
        self._runtime.leased_runs.discard(run)
        self.finishing -= 1

    # -- settle

    def _forward_or_ack(self, jobs: list[Job]) -> None:
        """``jobs`` are recorded: ack them, after what they send on is sent."""
        finished = [job for job in jobs if not job.outgoing]
        if finished:
            self._consumer.ack(finished)
        for job in jobs:
            if job.outgoing:
                self._background.spawn(self._forward(job))

    async def _forward(self, job: Job) -> None:
        """Send what the handler has left in its record, for the first time or again, and then ack (F52: a message that
        follows from another one is neither lost nor sent under a new id)."""
        assert job.route.to is not None
        assert job.outgoing is not None
        try:
            await self._publish(job.route.to, job.outgoing)
        except BrokerUnavailable as error:
            self._consumer.redeliver(job, error.retry_after)
        except Exception as error:
            delay = job.route.retry.after(error, max(1, job.delivery.attempt))
            if delay is None:
                await self._bury(job, error, job.delivery.attempt, "unsent")
            else:
                self._consumer.redeliver(job, delay, tried=True)
        else:
            self._consumer.ack([job])

    def _settle_failure(self, job: Job, error: BaseException) -> None:
        """The handler of ``job`` raised ``error``, or was cancelled."""
        failed = is_failure(error)
        cancelled = isinstance(error, asyncio.CancelledError)
        if cancelled and not failed and not job.route.is_async:
            return  # only its waiter is gone: the thread runs on, and keeps its lease
        self.finishing += 1
        if not failed and not cancelled:
            self._fail(error)
        self._background.spawn(self._abort(job, error, failed))

    async def _abort(self, job: Job, error: BaseException, failed: bool) -> None:
        """Settle the record of a job that was not done, then its delivery."""
        run = job.run
        assert run is not None
        await finish.abort(run, self._client, error)
        self._runtime.leased_runs.discard(run)
        attempt, retry = job.attempt, job.route.retry
        if isinstance(error, run.policy.permanent) and not isinstance(error, EffectOnceError):
            await self._bury(job, error, attempt, "permanent-failure")
        elif run.policy.doubt_on_error:
            await self._bury(job, error, attempt, "in-doubt")
        elif not failed:  # cancelled, or it ended this process: that says nothing about the message
            self._consumer.redeliver(job, 0.0)
        elif (delay := retry.after(error, attempt)) is not None:
            self._consumer.redeliver(job, delay, tried=True)
        else:
            await self._bury(job, error, attempt, "refused" if retry.refuses(error) else "attempts-exhausted")
        self.finishing -= 1

    def _give_up_exhausted(self, job: Job, attempts: int) -> None:
        self._give_up(job, AttemptsExhausted("every allowed attempt was used"), attempts)

    def _give_up(self, job: Job, error: Exception, attempts: int, why: str = "") -> None:
        self._background.spawn(self._bury(job, error, attempts, why))

    async def _bury(self, job: Job, error: BaseException, attempts: int, why: str) -> None:
        """Move ``job`` to the dead letters, with the time of its first attempt where its record knows that."""
        cause = cause_of(error, why, attempts=max(0, attempts))
        try:
            record = await asyncio.to_thread(self._store.get, job.route.policy.scope, job.key)
            cause.first = record.created_at / 1e6 if record is not None else 0.0
        except EffectOnceError:
            pass  # the rest is worth having without it
        self._consumer.dead_letter(job, cause)

    # -- stop

    def _make_progress(self) -> None:
        """Something has left: there may be room for more, or nothing left to wait for."""
        if self._quarantine.closed:
            self._quarantine.advance()
        else:
            self.start()
        if self._consumer.stopping and not self.busy and not self._background.tasks:
            self._idle.set()

    async def stop(self, over: asyncio.Event) -> None:
        for pool in self.pools:
            while pool.ready:  # claimed, and never to be started
                job = pool.ready.pop()
                pool.taken -= 1
                self.finishing += 1
                self._background.spawn(self._return_unstarted(job))
        self._make_progress()
        await wait_for_either(self._idle, over)
        if not self._idle.is_set():
            log.warning(
                "queue %s: %d handlers did not end in time; their messages are given back",
                self._consumer.queue,
                self.busy,
            )
        for pool in self.pools:
            await pool.close()
        self._closed = True
        await self._background.wait()
        for job in self._succeeded:  # the store is away: these come again
            assert job.run is not None
            self._runtime.leased_runs.discard(job.run)
        self._quarantine.leave(self)

    async def _return_unstarted(self, job: Job) -> None:
        """Release the claim of a job that was prefetched, and give its delivery back."""
        run = job.run
        assert run is not None
        run.active = False
        claim = run.claim_request()
        if isinstance(claim, Claim):
            replies = self._client.settle_block([release(claim, run.answer)])
            if not isinstance(replies, list):
                await replies
        self._runtime.leased_runs.discard(run)
        self._consumer.redeliver(job, 0.0)
        self.finishing -= 1


def _run_handler(job: Job) -> Any:
    return job.route.function(job.message)
