"""Modes L and S: claim, run, record, and only then ack. Claims and completions go to the store as blocks.

    waiting ──claim──► ready ──slot──► ended ──complete──► recorded ──► ack
               │                 └───► raised ──release──► delayed, or dead
               └─► done: ack; in progress: delayed; in doubt, failed, mismatch: dead

While the store does not answer nothing is acked (F36): unanswered claims wait in hand and are repeated with the same
owner, and so are completions, which the store fences: repeating them is always right.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from effectonce.core.backoff import Backoff
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

from . import sending
from .chores import Chores, Fail, either
from .isolation import Isolation
from .jobs import Job, Poison, cause_of, mark
from .line import Line
from .routes import Route
from .slots import Slots, is_failure

log = logging.getLogger("effectonce")

#: The shortest delay of a duplicate whose first delivery is running, in seconds.
SOON = 0.05
#: How many blocks of claims, and how many of completions, are under way at once. What comes meanwhile goes out together
#: in the next: many small blocks would cost more than they save.
IN_FLIGHT = 2
#: After how many seconds a message comes again whose success could not be recorded.
UNRECORDED = 1.0

Publish = Callable[[str, list[Message[Any]]], Awaitable[None]]

#: Why a claim was refused for good, as a dead letter says it.
_WHY = {
    "failed": "permanent-failure",
    "exhausted": "attempts-exhausted",
    "in_doubt": "in-doubt",
    "mismatch": "payload-mismatch",
}


class Leases:
    """The discipline of a line whose effects are guarded by a store; see the module."""

    def __init__(
        self,
        line: Line,
        routes: Sequence[Route],
        store: Store,
        isolation: Isolation,
        publish: Publish,
        fail: Fail,
    ) -> None:
        self._line = line
        self._publish = publish
        self._store = store
        self._runtime = store.runtime
        self._client = self._runtime.async_client()
        self._isolation = isolation
        self._fail = fail
        self._loop = asyncio.get_running_loop()
        self._of: dict[Route, Slots[Job]] = {
            route: Slots(route, sending.handle if route.to else _handle, self._ended, self._raised, self._loop)
            for route in routes
        }
        self.slots = tuple(self._of.values())
        self._sends = any(route.to for route in routes)
        self._finished: list[Job] = []  # ended, and to be recorded
        self.ending = 0
        self.backoff = Backoff(f"queue {line.queue}, {store!r}")
        self._paused = False
        self._closed = False
        self._starting = False
        self._claiming = 0  # blocks of claims, and of completions, that are under way
        self._settling = 0
        self._chores = Chores(fail, self._moved)
        self._quiet = asyncio.Event()
        isolation.join(self)

    @property
    def busy(self) -> int:
        """How many are claimed, as far as this process knows."""
        return sum(slots.taken for slots in self.slots) + self.ending

    # -- claiming

    def waiting(self, job: Job) -> None:
        self._of[job.route].waiting.append(job)

    def start(self) -> None:
        if self._starting:  # a store in this process answers at once, and comes by here again
            return
        self._starting = True
        try:
            while self._may_claim() and (jobs := self._next()):
                self._claim(jobs)
        finally:
            self._starting = False

    def _may_claim(self) -> bool:
        held = self._paused or self._line.stopping or self._isolation.closed
        return not held and self._claiming < IN_FLIGHT

    def _next(self) -> list[Job]:
        jobs: list[Job] = []
        for slots in self.slots:
            waiting, room = slots.waiting, slots.room
            while waiting and room > 0:
                job = waiting.popleft()
                if job.stale:
                    self._line.drop(job)
                else:
                    room -= 1
                    slots.taken += 1
                    jobs.append(job)
        return jobs

    def start_alone(self, job: Job) -> None:
        """Claim what `Isolation` has kept until nothing else runs."""
        if self._line.stopping:  # it is given back with all that is in hand
            self._isolation.left(job)
        elif job.stale:
            self._line.drop(job)
            self._isolation.left(job)
        else:
            self._of[job.route].taken += 1
            self._claim([job])

    def _claim(self, jobs: list[Job]) -> None:
        runtime = self._runtime
        prepare = begin.prepare
        ops: list[Claim | Look] = []
        for job in jobs:
            run = job.run
            # One that was asked for before, and not answered, is asked for again by the same owner: if it was granted,
            # its lease began then. Where that is over by now, another owner asks.
            if run is None or run.lease_lost:
                run = job.run = prepare(runtime, job.route.policy, job.key, job.fingerprints)
                mark(job, run)
            ops.append(run.claim_request())
        ends = [slots.ends for slots in self.slots]
        self._claiming += 1
        self._chores.when(self._client.claim_block(ops), lambda replies: self._answers(jobs, ops, ends, replies))

    def _answers(self, jobs: list[Job], ops: list[Claim | Look], ends: list[int], replies: list[Reply]) -> None:
        self._claiming -= 1
        if self._closed:  # too late: what was granted is given back
            for op, reply in zip(ops, replies, strict=True):
                if isinstance(op, Claim) and isinstance(reply, Answer) and reply.kind == "claimed":
                    self._give_back(op, reply, lambda _: None)
            return
        of = self._of
        for job, op, reply in zip(jobs, ops, replies, strict=True):
            slots = of[job.route]
            if type(reply) is Answer and (reply.kind == "claimed" or reply.kind == "absent"):
                if reply.attempts == 1 or self._may_run(job, op, reply):
                    begin.take_reply(job.run, reply)  # type: ignore[arg-type]
                    slots.ready.append(job)
                    continue
            elif type(reply) is Answer:
                self._refused(job, reply)
            else:
                self._unanswered(job, reply)
            slots.taken -= 1
        for slots, before in zip(self.slots, ends, strict=True):
            slots.answered(slots.ends - before)
            if slots.ready:
                slots.wake()
        if not self._paused:
            self.backoff.worked()
        self._moved()

    def _may_run(self, job: Job, op: Claim | Look, answer: Answer) -> bool:
        """Whether what was granted is to run here and now; where it is not, it is seen to."""
        retry = job.route.retry
        if not isinstance(op, Claim):  # mode S, which counts nothing: the broker's count has to do
            attempts = job.tries
            if retry.max_attempts is not None and attempts > retry.max_attempts:
                self._exhausted(job, attempts - 1)
                return False
            return True
        attempts = answer.attempts - job.used
        if answer.lapsed:
            if attempts > retry.max_crashes:
                # Not released: its lease lapses, so that its duplicates are recognised for what they are, too.
                text = f"its last attempt ended without a word, and it has been tried {attempts - 1} times"
                self._give_up(job, Poison(text), attempts - 1)
                return False
            if not job.suspect:
                # Given back until it can run alone: should this process end over another, it is not counted for it.
                job.suspect, job.run = True, None
                self._give_back(op, answer, lambda _: self._isolation.add(self, job))
                return False
        elif retry.max_attempts is not None and attempts > retry.max_attempts:
            self._give_back(op, answer, lambda _: None)
            self._exhausted(job, attempts - 1)
            return False
        return True

    def _give_back(self, claim: Claim, answer: Answer, then: Callable[[list[Reply]], None]) -> None:
        self._chores.when(self._client.settle_block([release(claim, answer)]), then)

    def _refused(self, job: Job, answer: Answer) -> None:
        run = job.run
        assert run is not None
        job.run = None
        try:
            begin.take_reply(run, answer)
        except Exception as error:
            if answer.kind == "in_progress":
                self._line.later(job, max(answer.retry_after, SOON))
                self._isolation.left(job)
                return
            if answer.kind != "done":  # done, and its result cannot be read: nobody here asks for it
                self._give_up(job, error, answer.attempts - job.used, _WHY[answer.kind])
                return
        if self._line.tracer is not None:
            self._line.tracer.skipped(self._line.queue, job.message, run)
        job.outgoing = run.value if job.route.to else None
        if job.outgoing:
            self._chores.spawn(self._send(job))
        else:
            self._line.done([job])
        self._isolation.left(job)

    async def _send(self, job: Job) -> None:
        """Send on what it has left in its record, for the first time or again, and ack it after that (F52)."""
        assert job.route.to is not None
        assert job.outgoing is not None
        try:
            await self._publish(job.route.to, job.outgoing)
        except BrokerUnavailable as error:
            self._line.later(job, error.retry_after)
        except Exception as error:
            delay = job.route.retry.after(error, max(1, job.delivery.attempt))
            if delay is None:
                await self._bury(job, error, job.delivery.attempt, "unsent")
            else:
                self._line.later(job, delay, tried=True)
        else:
            self._line.done([job])

    def _unanswered(self, job: Job, reply: Reply) -> None:
        """The store did not answer, or not sensibly. It keeps its place, and its owner."""
        assert isinstance(reply, Exception)
        if isinstance(reply, ConfigurationError):
            self._fail(reply)
        if not isinstance(reply, StoreUnavailable | ConfigurationError):
            log.error("queue %s: the claim of key %s failed: %r", self._line.queue, show(job.key), reply)
            self._line.later(job, job.route.retry.first)
        elif job.suspect:
            self._line.later(job, UNRECORDED)
            self._pause(reply)
        else:
            self._of[job.route].waiting.appendleft(job)
            self._pause(reply)
        self._isolation.left(job)

    def _pause(self, error: Exception) -> None:
        if not self._paused:
            self._paused = True
            self._loop.call_later(self.backoff.failed(error), self._resume)

    def _resume(self) -> None:
        self._paused = False
        self._complete()
        self.start()
        self._isolation.step()

    # -- ending

    def _ended(self, job: Job) -> None:
        if job.run is not None:
            job.run.stop_clock()
        self.ending += 1
        self._finished.append(job)
        if len(self._finished) == 1:
            self._loop.call_soon(self._complete)

    def _complete(self) -> None:
        if not self._finished or self._paused or self._settling >= IN_FLIGHT:
            return
        self._settling += 1
        self._line.make_room()
        jobs, self._finished = self._finished, []
        ops = []
        for job in jobs:
            run = job.run
            assert run is not None
            ops.append(finish.completion_of(run, finish.add_trace(run, job.result)))
        self._chores.when(self._client.settle_block(ops), lambda replies: self._recorded(jobs, replies))
        self.start()

    def _recorded(self, jobs: list[Job], replies: list[Reply]) -> None:
        self._settling -= 1
        done: list[Job] = []
        told = self._runtime.hooks or self._runtime.waiters.waiting  # somebody wants to hear of a success
        for job, reply in zip(jobs, replies, strict=True):
            if reply is not True or told:
                try:
                    finish.confirm_reply(job.run, reply)  # type: ignore[arg-type]
                except Exception as error:
                    self._unrecorded(job, error)
                    continue
            done.append(job)
        self._runtime.leased_runs.difference_update([job.run for job in done])
        self.ending -= len(done)
        sending = [job for job in done if job.outgoing] if self._sends else ()
        self._line.done([job for job in done if not job.outgoing] if sending else done)
        for job in sending:
            self._chores.spawn(self._send(job))
        for job in done:
            if job.suspect:
                self._isolation.left(job)
        if not self._paused:
            self.backoff.worked()
        self._complete()
        self._moved()

    def _unrecorded(self, job: Job, error: Exception) -> None:
        run, line = job.run, self._line
        assert run is not None
        if isinstance(error, StoreUnavailable) or not (isinstance(error, LeaseLost) or run.lease_lost):
            self._finished.append(job)  # asked again: the store knows its own
            self._pause(error)
            return
        log.warning("queue %s: a success was not recorded: %s", line.queue, error)
        line.later(job, UNRECORDED)
        self._runtime.leased_runs.discard(run)
        self.ending -= 1
        self._isolation.left(job)

    def _raised(self, job: Job, error: BaseException) -> None:
        failed = is_failure(error)
        cancelled = isinstance(error, asyncio.CancelledError)
        if cancelled and not failed and not job.route.is_async:
            return  # only who waited for it is gone: the thread runs on, and keeps its lease
        self.ending += 1
        if not failed and not cancelled:
            self._fail(error)
        self._chores.spawn(self._abort(job, error, failed))

    async def _abort(self, job: Job, error: BaseException, failed: bool) -> None:
        run, retry = job.run, job.route.retry
        assert run is not None
        await finish.abort(run, self._client, error)
        self._runtime.leased_runs.discard(run)
        attempt, policy = job.attempt, run.policy
        if isinstance(error, policy.permanent) and not isinstance(error, EffectOnceError):
            await self._bury(job, error, attempt, "permanent-failure")
        elif policy.doubt_on_error:
            await self._bury(job, error, attempt, "in-doubt")
        elif not failed:  # cancelled, or it ended this process: that says nothing about it
            self._line.later(job, 0.0)
        else:
            delay = retry.after(error, attempt)
            if delay is None:
                why = "refused" if retry.refuses(error) else "attempts-exhausted"
                await self._bury(job, error, attempt, why)
            else:
                self._line.later(job, delay, tried=True)
        self.ending -= 1
        self._isolation.left(job)

    # -- giving up

    def _exhausted(self, job: Job, attempts: int) -> None:
        self._give_up(job, AttemptsExhausted("every allowed attempt was used"), attempts)

    def _give_up(self, job: Job, error: Exception, attempts: int, why: str = "") -> None:
        async def bury() -> None:
            await self._bury(job, error, attempts, why)
            self._isolation.left(job)

        self._chores.spawn(bury())

    async def _bury(self, job: Job, error: BaseException, attempts: int, why: str) -> None:
        cause = cause_of(error, why, attempts=max(0, attempts))
        try:
            record = await asyncio.to_thread(self._store.get, job.route.policy.scope, job.key)
            cause.first = record.created_at / 1e6 if record is not None else 0.0
        except EffectOnceError:
            pass  # the rest is worth having without it
        self._line.dead(job, cause)

    # -- helpers

    def _moved(self) -> None:
        """Something has left: there may be room, or quiet."""
        if self._isolation.closed:
            self._isolation.step()
        else:
            self.start()
        if self._line.stopping and not self.busy and not self._chores.tasks:
            self._quiet.set()

    async def stop(self, over: asyncio.Event) -> None:
        for slots in self.slots:
            while slots.ready:  # claimed, and never to be started
                job = slots.ready.pop()
                slots.taken -= 1
                self.ending += 1
                self._chores.spawn(self._return(job))
        self._moved()
        await either(self._quiet, over)
        if not self._quiet.is_set():
            log.warning("queue %s: %d handlers did not end in time; they are given back", self._line.queue, self.busy)
        for slots in self.slots:
            await slots.close()
        self._closed = True
        await self._chores.finished()
        for job in self._finished:  # the store is away: these come again
            assert job.run is not None
            self._runtime.leased_runs.discard(job.run)
        self._isolation.leave(self)

    async def _return(self, job: Job) -> None:
        run = job.run
        assert run is not None
        run.active = False
        claim = run.claim_request()
        if isinstance(claim, Claim):
            replies = self._client.settle_block([release(claim, run.answer)])
            if not isinstance(replies, list):
                await replies
        self._runtime.leased_runs.discard(run)
        self._line.later(job, 0.0)
        self.ending -= 1


def _handle(job: Job) -> Any:
    return job.route.function(job.message)
