"""Recording how jobs ended: the outcome of each goes into the store first, and only then is its delivery settled.

Completions go to the store in batches, and those that are not answered are sent again: the store fences them, so that
repeating one is always right. A message that the handler sends on leaves after its record is complete, and before the
ack (F52: what follows from a message is neither lost nor sent under a new id).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from effectonce.core.group_commit.batcher import StoreBatcher
from effectonce.core.guarded_call import finish
from effectonce.errors import BrokerUnavailable, ConfigurationError, EffectOnceError, LeaseLost, StoreUnavailable
from effectonce.message import Message
from effectonce.record import Remember, Reply, Settlement
from effectonce.store import Store

from .background_tasks import BackgroundTasks, ReportFailure
from .causes import CauseCode, cause_of
from .handler_pool import is_failure
from .jobs import Job
from .pause import Pause
from .queue_consumer import QueueConsumer
from .routes import GiveUp, RetryAfter

log = logging.getLogger("effectonce")

UNRECORDED_DELAY_S: Final = 1.0
"""After how long a message whose success could not be recorded is redelivered."""

Publish = Callable[[str, list[Message[Any]]], Awaitable[None]]


class Recorder:
    """Records the outcomes of the jobs of one queue, which have run under leases."""

    def __init__(
        self,
        consumer: QueueConsumer,
        store: Store,
        settlements: StoreBatcher,
        pause: Pause,
        publish: Publish,
        fail: ReportFailure,
        on_end: Callable[[], None],
    ) -> None:
        """``on_end`` is called after each job that was settled by a task of its own."""
        self._background = BackgroundTasks(fail, on_end)
        self._consumer = consumer
        self._store = store
        self._leased_runs = store.runtime.leased_runs
        self._client = store.runtime.async_client()
        self._settlements = settlements
        self._pause = pause
        self._publish = publish
        self._fail = fail
        self._stopped = False
        self._unrecorded: list[Job] = []  # they have succeeded, and the store did not answer
        self._recorded: list[Job] = []  # to be acked at the end of this batch

    @property
    def has_tasks(self) -> bool:
        """Whether a job is being settled by a task of its own."""
        return bool(self._background.tasks)

    # -- success

    def record_success(self, job: Job) -> None:
        """The handler of ``job`` has returned."""
        run = job.run
        assert run is not None
        self._consumer.add_finishing(job)
        if self._stopped:
            self._background.spawn(self._record_late(job))
        elif self._pause.active:
            run.end_handler()
            self._unrecorded.append(job)
        else:
            self._settlements.submit(finish.make_completion(run, job.result), self._handle_recorded, job)

    def _handle_recorded(self, job: Job, completion: Settlement | Remember, reply: Reply) -> None:
        run = job.run
        assert run is not None
        try:
            finish.confirm_reply(run, reply)
        except (StoreUnavailable, ConfigurationError) as error:
            if self._stopped:
                self._redeliver_unrecorded(job, error)
            else:
                self._unrecorded.append(job)  # sent again: the store recognises this owner's completion
                self._pause.begin(error)
        except Exception as error:
            # The store answers, and rejects this completion: the others need no pause. As `finish` does, try once more,
            # without the result; but with ``to=`` that holds the messages to send.
            if self._stopped or isinstance(error, LeaseLost) or job.route.to or job.result is None:
                self._redeliver_unrecorded(job, error)
            else:
                job.result = None
                self.record_success(job)
        else:
            if self._pause.waits_for_answer:
                self._pause.server_answered()
            self._leased_runs.discard(run)
            self.forward_or_ack(job)

    def _redeliver_unrecorded(self, job: Job, error: Exception) -> None:
        """The success of ``job`` is not recorded: let it be redelivered. Until its lease ends it is found in
        progress."""
        log.warning("queue %s: a success was not recorded: %s", self._consumer.queue, error)
        assert job.run is not None
        self._leased_runs.discard(job.run)
        self._consumer.redeliver(job, UNRECORDED_DELAY_S, tried=True)

    async def _record_late(self, job: Job) -> None:
        """Record the success of a thread that has outlasted the worker: its next delivery need not run again."""
        assert job.run is not None
        try:
            finish.confirm_reply(job.run, await self._client.settle(finish.make_completion(job.run, job.result)))
        except Exception as error:
            log.warning("queue %s: a success was not recorded: %s", self._consumer.queue, error)
        self._leased_runs.discard(job.run)

    def resend(self) -> None:
        """The store may answer again: send the completions that it did not answer."""
        jobs, self._unrecorded = self._unrecorded, []
        for job in jobs:
            self.record_success(job)

    def forward_or_ack(self, job: Job) -> None:
        """``job`` is recorded: ack it with this batch of the store, after what it sends on is sent."""
        if job.outgoing:
            self._background.spawn(self._forward(job, job.outgoing))
        else:
            self._recorded.append(job)

    def ack_recorded(self) -> None:
        """Ack what a batch of the store has recorded, all at once."""
        if self._recorded:
            jobs, self._recorded = self._recorded, []
            self._consumer.ack(jobs)

    async def _forward(self, job: Job, messages: list[Message[Any]]) -> None:
        """Send what the handler has left in its record, for the first time or again, and then ack."""
        assert job.route.to is not None
        try:
            await self._publish(job.route.to, messages)
        except BrokerUnavailable as error:
            self._consumer.redeliver(job, error.retry_after)
        except Exception as error:
            delay = job.route.retry.delay_after(error, job.broker_attempt)
            if delay is None:
                await self._dead_letter(job, error, job.broker_attempt, "unsent")
            else:
                self._consumer.redeliver(job, delay, tried=True)
        else:
            self._consumer.ack([job])

    # -- failure

    def settle_failure(self, job: Job, error: BaseException) -> None:
        """The handler of ``job`` raised ``error``, or was cancelled."""
        failed = is_failure(error)
        cancelled = isinstance(error, asyncio.CancelledError)
        if cancelled and not failed and not job.route.is_async:
            return  # only its waiter is gone: the thread runs on, and keeps its lease
        self._consumer.add_finishing(job)
        if not failed and not cancelled:
            self._fail(error)
        self._background.spawn(self._abort(job, error, failed))

    async def _abort(self, job: Job, error: BaseException, failed: bool) -> None:
        """Settle the record of a job that was not done, then its delivery."""
        run = job.run
        assert run is not None
        await finish.abort(run, self._client, error)
        self._leased_runs.discard(run)
        decision = job.route.decide_failure(error, job.attempt)
        if isinstance(decision, GiveUp) and (failed or decision.why in ("permanent-failure", "in-doubt")):
            await self._dead_letter(job, error, job.attempt, decision.why)
        elif failed and isinstance(decision, RetryAfter):
            self._consumer.redeliver(job, decision.seconds, tried=True)
        else:  # cancelled, or it ended this process: the message is not to blame
            self._consumer.redeliver(job, 0.0)

    def give_up(self, job: Job, error: Exception, attempts: int, why: CauseCode) -> None:
        """Move ``job`` to the dead letters, without another attempt."""
        self._background.spawn(self._dead_letter(job, error, attempts, why))

    async def _dead_letter(self, job: Job, error: BaseException, attempts: int, why: CauseCode) -> None:
        """Move ``job`` to the dead letters, with the time of its first attempt where its record knows that."""
        cause = cause_of(error, why, max(0, attempts))
        try:
            record = await asyncio.to_thread(self._store.get, job.route.policy.scope, job.key)
            cause.first = record.created_at / 1e6 if record is not None else 0.0
        except EffectOnceError as error:  # the rest is worth having without it
            log.debug("the time of the first attempt of a dead letter is not known: %s", error)
        self._consumer.dead_letter(job, cause)

    async def stop(self) -> None:
        """Wait for the tasks under way. What is not recorded is redelivered: the store is away."""
        self._stopped = True
        self._pause.close()
        await self._background.wait()
        for job in self._unrecorded:
            assert job.run is not None
            self._leased_runs.discard(job.run)
