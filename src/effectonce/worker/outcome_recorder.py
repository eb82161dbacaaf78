"""Recording how jobs ended: the outcome of each goes into the store first, and only then is its delivery settled.

Completions go to the store in batches, and those that are not answered are sent again: the store fences them, so that
repeating one is always right. A message that the handler sends on leaves after its record is complete, and before the
ack (F52: what follows from a message is neither lost nor sent under a new id).

Everything runs on one event loop. A job that has run is in one place at a time: under way to the store, in
``_unrecorded`` while the store is away, in ``_recorded`` until its batch is settled, or in a background task. Its run
stays in the store's ``leased_runs``, so that its lease is renewed, until the outcome is recorded or given up. If the
process dies before an outcome is recorded, the message runs again when the lease is over; if after that, its redelivery
finds the record.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from effectonce.core.failure_log import retried_in
from effectonce.core.group_commit.batcher import StoreBatcher
from effectonce.core.guarded_call import finish
from effectonce.errors import BrokerUnavailable, ConfigurationError, EffectOnceError, LeaseLost, StoreUnavailable
from effectonce.message import Message
from effectonce.record import Remember, Reply, Settlement
from effectonce.store import Store

from .background_tasks import BackgroundTasks, ReportFailure
from .dead_letter_cause import CauseCode
from .handler_pool import is_failure
from .jobs import Job
from .outage_pause import Pause
from .queue_consumer import QueueConsumer
from .routes import GiveUp, RedeliverUncounted, RetryAfter

log = logging.getLogger("effectonce")

UNRECORDED_DELAY_S: Final = 1.0
"""After how long a message whose success could not be recorded is redelivered."""

Publish = Callable[[str, list[Message[Any]]], Awaitable[None]]


class OutcomeRecorder:
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
        self._recorded: list[Job] = []  # to be settled at the end of this batch

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
            self._recorded.append(job)

    def _redeliver_unrecorded(self, job: Job, error: Exception) -> None:
        """The success of ``job`` is not recorded: let it be redelivered. Until its lease ends it is found in
        progress."""
        log.warning("queue %s: a success was not recorded: %s", self._consumer.queue, error, exc_info=error)
        assert job.run is not None
        self._leased_runs.discard(job.run)
        self._consumer.redeliver(job, UNRECORDED_DELAY_S, tried=True)

    async def _record_late(self, job: Job) -> None:
        """Record the success of a thread that has outlasted the worker: its next delivery need not run again."""
        assert job.run is not None
        try:
            finish.confirm_reply(job.run, await self._client.settle(finish.make_completion(job.run, job.result)))
        except Exception as error:
            log.warning("queue %s: a success was not recorded: %s", self._consumer.queue, error, exc_info=error)
        self._leased_runs.discard(job.run)

    def resend(self) -> None:
        """The store may answer again: send the completions that it did not answer."""
        jobs, self._unrecorded = self._unrecorded, []
        for job in jobs:
            self.record_success(job)

    def add_recorded(self, job: Job) -> None:
        """``job`` is recorded: settle it with this batch of the store."""
        self._recorded.append(job)

    def settle_recorded(self) -> None:
        """Ack what a batch of the store has recorded, all at once; a job that sends messages on, after they are
        sent."""
        if self._recorded:
            jobs, self._recorded = self._recorded, []
            for job in jobs:
                if job.outgoing:
                    self._background.spawn(self._forward(job, job.outgoing))
            self._consumer.ack([job for job in jobs if not job.outgoing])

    async def _forward(self, job: Job, messages: list[Message[Any]]) -> None:
        """Send what the handler has left in its record, for the first time or again, and then ack."""
        assert job.route.to is not None
        try:
            await self._publish(job.route.to, messages)
        except BrokerUnavailable as error:
            then = f"could not send on what it returned, which {retried_in(error.retry_after)}"
            self._consumer.log_failed(job, error, then, attempt=job.broker_attempt)
            self._consumer.redeliver(job, error.retry_after)
        except Exception as error:
            delay = job.route.retry.delay_after(error, job.broker_attempt)
            if delay is None:
                await self._dead_letter(job, error, job.broker_attempt, "unsent")
            else:
                self._consumer.retry(job, error, delay)
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
        decision = job.route.decide_failure(error, job.attempt)
        await finish.abort(run, self._client, error, refund=isinstance(decision, RedeliverUncounted))
        self._leased_runs.discard(run)
        if isinstance(decision, GiveUp) and (failed or decision.why in ("permanent-failure", "in-doubt")):
            await self._dead_letter(job, error, job.attempt, decision.why)
        elif failed and isinstance(decision, RetryAfter):
            self._consumer.retry(job, error, decision.seconds)
        elif isinstance(decision, RedeliverUncounted):
            self._consumer.redeliver_uncounted(job, decision.error)
        else:  # cancelled, or it ended this process: the message is not to blame
            self._consumer.redeliver(job, 0.0)

    def give_up(self, job: Job, error: Exception, attempts: int, why: CauseCode) -> None:
        """Move ``job`` to the dead letters, without another attempt."""
        self._background.spawn(self._dead_letter(job, error, attempts, why))

    async def _dead_letter(self, job: Job, error: BaseException, attempts: int, why: CauseCode) -> None:
        """Move ``job`` to the dead letters, with the time of its first attempt where its record knows that."""
        first_attempt_at = 0.0
        try:
            record = await asyncio.to_thread(self._store.get, job.route.policy.scope, job.key)
            first_attempt_at = record.created_at / 1e6 if record is not None else 0.0
        except EffectOnceError as unread:  # the rest is worth having without it
            log.debug("the time of the first attempt of a dead letter is not known: %s", unread)
        self._consumer.dead_letter(job, error, why, attempts, first_attempt_at=first_attempt_at)

    async def stop(self) -> None:
        """Wait for the tasks under way. What is not recorded is redelivered: the store is away."""
        self._stopped = True
        self._pause.close()
        await self._background.wait()
        for job in self._unrecorded:
            assert job.run is not None
            self._leased_runs.discard(job.run)
