"""Modes L and S: claim, run, record, and only then ack.

    waiting ──claim──► ready ──handler──► succeeded ──complete──► recorded ──► ack
               │                    ├───► raised ──release──► redelivered, or dead
               │                    └───► raised InProgress ──release, uncounted──► redelivered
               └─► done: ack; in progress: redelivered; in doubt, failed, mismatch: dead

The executor claims, and gives what is granted to the handlers' pools; the `OutcomeRecorder` does the rest. Claims go
to the store in batches: what waits while one is under way goes out with the next.

Everything runs on one event loop: calls of the consumer, callbacks of the batchers with the store's replies, callbacks
of the pools. ``job.run`` is the claim of a job. It is set when the claim is sent, kept while the store has not answered
it, and None again once the claim was refused or released: then the next claim has another owner.

While the store does not answer, nothing is acked (F36: a store that is away must not lose or double anything). Claims
without an answer stay in flight and are repeated by the same owner.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final, Literal

from effectonce.core.claim_errors import describe_last_error
from effectonce.core.failure_log import retried_in
from effectonce.core.group_commit.batcher import StoreBatcher
from effectonce.core.guarded_call import begin
from effectonce.core.store_clients import ClaimAndSettlement, release_with_refund
from effectonce.core.tracing import continue_trace
from effectonce.errors import AttemptsExhausted, ConfigurationError, CorruptRecord, InProgress, Poison, StoreUnavailable
from effectonce.record import Answer, Claim, Look, Reply, Settlement
from effectonce.store import Store

from . import forwarding
from .background_tasks import ReportFailure, wait_until_either_is_set
from .dead_letter_cause import CauseCode
from .early_acks import EarlyAcks
from .handler_pool import HandlerPool
from .jobs import Job
from .outage_pause import Pause
from .outcome_recorder import OutcomeRecorder, Publish
from .quarantine import Quarantine
from .queue_consumer import QueueConsumer
from .routes import HandlerRoute

log = logging.getLogger("effectonce")

#: Why a claim was refused for good, as a dead letter says it.
_REFUSAL_CODES: Final[dict[str, CauseCode]] = {
    "failed": "permanent-failure",
    "exhausted": "attempts-exhausted",
    "in_doubt": "in-doubt",
    "mismatch": "payload-mismatch",
}


def decide_grant(job: Job, answer: Answer) -> Literal["start", "run_alone", "poison", "exhausted"]:
    """Decide what happens to ``job``, whose claim was granted by ``answer``.

    If the attempt before ended without a word, probably in a crash, the job may run only while nothing else does: a
    crash that another message causes must not be counted against it.
    """
    retry, attempts = job.route.retry, job.attempts_at(answer)
    if answer.lapsed:
        if attempts > retry.max_crashes:
            return "poison"
        return "start" if job.must_run_alone else "run_alone"
    if retry.max_attempts is not None and attempts > retry.max_attempts:
        return "exhausted"
    return "start"


class LeaseExecutor:
    """Runs the jobs of one queue under leases of a store."""

    def __init__(
        self,
        consumer: QueueConsumer,
        routes: Sequence[HandlerRoute],
        store: Store,
        batchers: ClaimAndSettlement[StoreBatcher],
        quarantine: Quarantine,
        publish: Publish,
        fail: ReportFailure,
    ) -> None:
        self._consumer = consumer
        self._runtime = store.runtime
        self._claims, self._settlements = batchers
        self._quarantine = quarantine
        self._fail = fail
        self._pause = Pause(f"queue {consumer.queue}, {store!r}", self._resume)
        self._recorder = OutcomeRecorder(
            consumer, store, self._settlements, self._pause, publish, fail, self._make_progress
        )
        self._pool_of: dict[HandlerRoute, HandlerPool[Job]] = {
            route: HandlerPool(
                route,
                forwarding.run_handler if route.to else _run_handler,
                on_success=self._recorder.record_success,
                on_error=self._recorder.settle_failure,
                on_idle=self.start,  # so that claims share a batch with the completions of the jobs before them
                on_late=self._give_late_grant_back,
                fail=fail,
                loop=asyncio.get_running_loop(),
            )
            for route in routes
        }
        self.pools = tuple(self._pool_of.values())
        self._early_acks = EarlyAcks(consumer, self._return_ready, fail, self._make_progress)
        self._unanswered_suspect: Job | None = None  # the store did not answer its claim
        self._late_grants: list[Job] = []  # the store did not answer the release of their grants
        self._closed = False
        self._idle = asyncio.Event()
        quarantine.register(self)
        for batcher in batchers.distinct():
            batcher.on_batch.append(self._make_progress)

    @property
    def claimed_count(self) -> int:
        """How many jobs are claimed, as far as this process knows."""
        return sum(pool.claimed_count for pool in self.pools) + len(self._consumer.finishing)

    # -- claim

    def enqueue(self, job: Job) -> None:
        self._pool_of[job.route].waiting.append(job)

    def start(self) -> None:
        """Claim as many waiting jobs as there is room for."""
        if self._pause.active or self._consumer.stopping or self._quarantine.blocks_new_work:
            return
        for pool in self.pools:
            room = pool.free_slots
            while pool.waiting and room > 0:
                job = pool.waiting.popleft()
                if job.stale:
                    self._consumer.drop(job)
                else:
                    room -= 1
                    self._claim(job, pool)

    def start_alone(self, job: Job) -> bool:
        """Claim a suspect, which has waited until nothing else runs. Returns False where it is not to run here."""
        if self._consumer.stopping:  # it is given back with all that is in flight
            return False
        if job.stale:
            self._consumer.drop(job)
            return False
        self._claim(job, self._pool_of[job.route])
        return True

    def on_suspect_left(self, job: Job) -> None:
        self._quarantine.release(job)

    def _claim(self, job: Job, pool: HandlerPool[Job]) -> None:
        pool.begin_claim(job)
        # A claim that was sent before, and not answered, is repeated by the same owner: if it was granted, its lease
        # began then. Where that lease is over by now, another owner claims.
        run = job.run
        if run is None or run.lease_lost:
            run = job.run = begin.prepare_run(self._runtime, job.route.policy, job.key, job.fingerprints)
            run.redriven, run.bypassing = job.redriven, job.bypassing
        self._claims.submit(run.claim_request(), self._handle_answer, job)

    def _handle_answer(self, job: Job, request: Claim | Look, reply: Reply) -> None:
        """Settle or start ``job`` by the store's ``reply`` to its claim. Each way through here does one of both,
        once."""
        pool = self._pool_of[job.route]
        if self._closed:  # too late to run it
            if isinstance(request, Claim) and isinstance(reply, Answer) and reply.kind == "claimed":
                self._release(request, reply)
            return
        pool.end_claim(job)
        if not isinstance(reply, Answer):
            self._handle_no_answer(job, reply)
            return
        if self._pause.waits_for_answer:
            self._pause.server_answered()
        if reply.kind not in ("claimed", "absent"):
            self._settle_refused(job, reply)
        elif self._consumer.stopping:  # it would be cut off by the end of the drain
            self._return_unstarted(job, request, reply)
        else:
            # Most are first attempts, which are always allowed.
            decision = "start" if reply.attempts == 1 else decide_grant(job, reply)
            if decision == "start":
                assert job.run is not None
                begin.take_answer(job.run, reply)
                if job.redelivered or reply.attempts > 1:
                    job.show_attempt(job.attempt)
                if job.route.acks_first and not job.acked:
                    self._early_acks.add(job, pool)
                else:
                    pool.add_ready(job)
            else:
                self._settle_unstarted(job, request, reply, decision)

    def _settle_unstarted(
        self, job: Job, request: Claim | Look, answer: Answer, decision: Literal["run_alone", "poison", "exhausted"]
    ) -> None:
        """Settle ``job``, whose claim was granted, and which `decide_grant` does not let start now."""
        attempts_before = job.attempts_at(answer) - 1
        if decision == "poison":
            # Not released: its lease lapses, so that its duplicates are recognised as poison, too.
            self._recorder.give_up(job, Poison(attempts_before), attempts_before, "poison")
            return
        if decision == "run_alone":
            assert isinstance(request, Claim)
            job.must_run_alone = True
            self._release(request, answer, job)
            return
        if isinstance(request, Claim):  # mode S holds no claim
            self._release(request, answer)
        assert job.run is not None
        last_error = describe_last_error(begin.read_last_error(job.run, answer))
        error = AttemptsExhausted(
            f"all {attempts_before} attempts failed; {last_error}fix the cause, then redrive the message"
        )
        self._recorder.give_up(job, error, attempts_before, "attempts-exhausted")

    def _give_late_grant_back(self, job: Job) -> None:
        """The lease of ``job`` was over before its handler could start: give the grant back, and claim again. Another
        delivery may have taken over."""
        run = job.run
        assert run is not None
        run.active = False
        self._runtime.leased_runs.discard(run)
        claim = run.claim_request()
        assert isinstance(claim, Claim)
        self._settlements.submit(release_with_refund(claim, run.answer), self._handle_late_released, job)

    def _handle_late_released(self, job: Job, settlement: Settlement, reply: Reply) -> None:
        """Claim again once the late grant is released, and not before: the new owner would find a lapsed lease, as
        after a crash. If the worker stops while the store is away, the next owner of the message finds just that."""
        if isinstance(reply, StoreUnavailable | ConfigurationError) and not self._consumer.stopping:
            self._late_grants.append(job)
            self._pause_for(reply)
            return
        job.run = None
        if self._consumer.stopping:
            self._consumer.redeliver(job, 0.0)
        elif job.must_run_alone:
            self.start_alone(job)
        else:
            self._pool_of[job.route].waiting.appendleft(job)

    def _release(self, claim: Claim, answer: Answer, suspect: Job | None = None) -> None:
        """Release a granted claim whose work does not start; then ``suspect`` may wait for its turn to run alone."""
        self._settlements.submit(release_with_refund(claim, answer), self._handle_released, suspect)

    def _handle_released(self, suspect: Job | None, settlement: Settlement, reply: Reply) -> None:
        if suspect is not None:
            if not isinstance(reply, Exception):
                suspect.run = None  # else it may hold its claim still: the same owner repeats it
            self._quarantine.add(self, suspect)

    def _settle_refused(self, job: Job, answer: Answer) -> None:
        """Ack, redeliver or dead-letter ``job``, whose claim was refused: it is done, in progress elsewhere, or refused
        for good."""
        run = job.run
        assert run is not None
        job.run = None
        try:
            begin.take_answer(run, answer)
        except Exception as error:
            if isinstance(error, InProgress):
                self._consumer.redeliver_uncounted(job, error)
                return
            if answer.kind != "done":
                self._recorder.give_up(job, error, job.attempts_at(answer), _REFUSAL_CODES[answer.kind])
                return
            # Its result cannot be read. The worker does not need it, unless it holds the messages to send.
            if job.route.to is not None and isinstance(error, CorruptRecord):
                self._recorder.give_up(job, error, job.attempts_at(answer), "unsent")
                return
        if self._consumer.tracer is not None:
            self._consumer.tracer.trace_duplicate(self._consumer.queue, job.message, run)
        job.outgoing = run.value if job.route.to else None
        self._recorder.add_recorded(job)

    def _handle_no_answer(self, job: Job, reply: Reply) -> None:
        """Redeliver ``job``, whose claim the store could not read; or keep its place and its owner, and pause, while
        the store is away or set up wrongly."""
        assert isinstance(reply, Exception)
        if not isinstance(reply, StoreUnavailable | ConfigurationError):
            delay = job.route.retry.first_s
            self._consumer.log_failed(job, reply, f"its claim {retried_in(delay)}")
            self._consumer.redeliver(job, delay)
            return
        if job.must_run_alone:
            self._unanswered_suspect = job
        else:
            self._pool_of[job.route].waiting.appendleft(job)
        self._pause_for(reply)

    def _pause_for(self, error: StoreUnavailable | ConfigurationError) -> None:
        """Send the store nothing for a while: it is away, or set up wrongly, which stops the worker."""
        if isinstance(error, ConfigurationError):
            self._fail(error)
        self._pause.begin(error)

    def _resume(self) -> None:
        """The pause for the store is over: ask it again."""
        self._recorder.resend()
        late_grants, self._late_grants = self._late_grants, []
        for job in late_grants:
            self._give_late_grant_back(job)
        if self._unanswered_suspect is not None:
            suspect, self._unanswered_suspect = self._unanswered_suspect, None
            self.start_alone(suspect)
        self.start()
        self._quarantine.start_next_suspect()

    def _make_progress(self) -> None:
        """Ack recorded jobs, run granted ones, and claim as many as there is room for. Called when the store has
        answered a batch, or a job has left."""
        self._recorder.settle_recorded()
        if self._early_acks.granted:
            self._early_acks.send()
        for pool in self.pools:
            if pool.ready:
                pool.wake()
        if self._quarantine.blocks_new_work:
            self._quarantine.start_next_suspect()
        else:
            self.start()
        if self._consumer.stopping and not self.claimed_count and not self._recorder.has_tasks:
            self._idle.set()

    # -- stop

    async def stop(self, drain_ended: asyncio.Event) -> None:
        for pool in self.pools:
            for job in pool.take_ready():
                if job.acked:  # there is no other delivery of it
                    pool.add_ready(job)
                else:
                    self._return_ready(job)
        self._make_progress()
        await wait_until_either_is_set(self._idle, drain_ended)
        if not self._idle.is_set():
            log.warning(
                "queue %s: %d message(s) did not finish in time and go back to the queue",
                self._consumer.queue,
                len(self._consumer.in_flight),
            )
        for pool in self.pools:
            await pool.close()
        self._closed = True
        await self._early_acks.wait()
        for pool in self.pools:
            for job in pool.take_ready():  # acked, and too late to run: in doubt when its lease ends
                assert job.run is not None
                self._runtime.leased_runs.discard(job.run)
        await self._recorder.stop()
        self._quarantine.unregister(self)

    def _return_ready(self, job: Job) -> None:
        """`_return_unstarted` for a job whose grant was noted on its run."""
        run = job.run
        assert run is not None
        run.active = False
        self._runtime.leased_runs.discard(run)
        self._return_unstarted(job, run.claim_request(), run.answer)

    def _return_unstarted(self, job: Job, claim: Claim | Look, answer: Answer) -> None:
        """Release the granted claim of a job that is never to be started, and then give its delivery back."""
        if not isinstance(claim, Claim):
            self._consumer.redeliver(job, 0.0)
            return
        self._consumer.add_finishing(job)
        self._settlements.submit(release_with_refund(claim, answer), self._handle_returned, job)

    def _handle_returned(self, job: Job, settlement: Settlement, reply: Reply) -> None:
        self._consumer.redeliver(job, 0.0)


def _run_handler(job: Job) -> Any:
    if job.message.headers:  # most messages have none
        continue_trace(job.message.headers)
    return job.route.function(job.message)
