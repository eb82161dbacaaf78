"""One queue of a worker: receive → decode → order → execute → settle.

The consumer receives deliveries and reads them as jobs (`MessageReader`). It gives each to the `Executor` when its turn
in its lane has come (`Lanes`), and hands what the executor decides to the `DeliverySettler`. A job is *in flight* from
its receipt until it is settled; while it is, the broker is asked to keep it ours.

Everything runs on one event loop. Three tasks belong to the consumer: one receives, one sends settlements, one extends
ack windows; the executor calls it from its own. No method awaits between reading the state below and changing it, so
there is no lock. A job leaves ``in_flight`` in the same step in which its settlement is handed over. If the process
dies, the broker redelivers all that it has not been told about: what had an effect is found in its record.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Literal, cast

from effectonce.contracts import BrokerCapabilities, Consumer, Delivery, HandlerTracer
from effectonce.core.backoff import Backoff
from effectonce.core.events import Events
from effectonce.core.failure_log import log_failed_attempt, retried_in
from effectonce.core.retry import Retry
from effectonce.errors import BrokerUnavailable, ConfigurationError, EffectOnceError, InProgress, UnknownType, show

from .attempt_counts import AttemptCounts
from .background_tasks import ReportFailure
from .dead_letter_cause import CauseCode, cause_of
from .delivery_settler import DeliverySettler
from .executor import Executor
from .jobs import Job
from .message_order import DELAY_STEP_S, DelayedLanes, Lanes
from .message_reader import MessageReader

log = logging.getLogger("effectonce")

RECEIVE_WAIT_S: Final = 1.0
"""The longest that `receive` waits for the first message."""

MIN_DUPLICATE_DELAY_S: Final = 0.05
"""The shortest delay of a message whose operation runs elsewhere."""

Unknown = Literal["dead", "delete", "retry", "fail"]
"""What happens to a message whose type no handler takes."""


class QueueConsumer:
    """Receives the messages of one queue, and has each settled as its executor decides. Runs on one event loop."""

    def __init__(
        self,
        queue: str,
        worker: str,
        consumer: Consumer,
        reader: MessageReader,
        make_executor: Callable[[QueueConsumer], Executor],
        *,
        prefetch: int,
        capabilities: BrokerCapabilities,
        unknown: Unknown,
        private: bool,
        fail: ReportFailure,
        events: Events,
        tracer: HandlerTracer | None,
    ) -> None:
        self.queue = queue
        self.stopping = False
        self.in_flight: dict[Job, None] = {}  # in the order of their receipt; a job waiting in its lane is in it, too
        self.finishing: set[Job] = set()  # jobs in flight that have run; others are received in their place
        self.received = 0  # deliveries, ever
        self.events = events
        self.tracer = tracer
        self.backoff = Backoff(f"queue {queue}")
        self.settler = DeliverySettler(queue, worker, consumer, events=self.events, tracer=tracer)
        self.counts = AttemptCounts(broker_counts=capabilities.counts_attempts)
        self._consumer = consumer
        self._reader = reader
        self._prefetch = prefetch
        self._max_receive = capabilities.batch
        #: How long a delivery stays ours, where that can be extended.
        self._ack_window_s = capabilities.ack_window_s if capabilities.extends else None
        self._broker_counts = capabilities.counts_attempts
        self._unknown = unknown
        self._private = private
        self._fail = fail
        self._loop = asyncio.get_running_loop()
        self.lanes = Lanes()
        self._broker_keeps_order = capabilities.ordering == "key"
        self._delayed = DelayedLanes(self._loop.time, broker_keeps_order=self._broker_keeps_order)
        self._room = asyncio.Event()  # set whenever a job has left or is finishing: more may be received
        self._receiving: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.executor = make_executor(self)  # last, since it uses what is set above

    def start(self) -> None:
        """Begin to consume."""
        self._receiving = self._spawn("receive", self._receive())
        self._spawn("settle", self.settler.run())
        if self._ack_window_s is not None:
            self._spawn("extend", self._keep_extending(self._ack_window_s))

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work, name=f"effectonce {name} {self.queue}")
        task.add_done_callback(self._report_defect)
        self._tasks.append(task)
        return task

    def _report_defect(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    # -- receive, decode, order

    async def _receive(self) -> None:
        worthwhile = max(1, min(self._max_receive, self._prefetch // 4))
        while not self.stopping:
            room = self._prefetch - len(self.in_flight) + len(self.finishing)
            if room < worthwhile:
                self._room.clear()
                await self._room.wait()
                continue
            self.settler.fetching = True
            if self._broker_keeps_order:
                self._delayed.forget_sent(self.settler.rounds_done)
            try:
                deliveries = await self._consumer.receive(min(room, self._max_receive), RECEIVE_WAIT_S)
            except BrokerUnavailable as error:
                await asyncio.sleep(self.backoff.record_failure(error))
                continue
            finally:
                self.settler.fetching = False
            if self.backoff.failures:
                self.backoff.record_success()
            if deliveries:
                self._accept(deliveries)

    def _accept(self, deliveries: Sequence[Delivery]) -> None:
        """Read ``deliveries`` as jobs, and let those start whose turn has come. One that cannot be read, or that has to
        wait for a delayed message of its ordering key, goes back without ever being in flight."""
        # Where the broker does not count, what comes first may be what the last process left behind.
        maybe_tried = not self._broker_counts and self.received <= self._prefetch
        self.received += len(deliveries)
        for delivery in deliveries:
            if delivery.attempt != 1:
                self.counts.set_attempt(delivery)  # before it is read: the message says which attempt it is
            try:
                job = self._reader.read(delivery)
            except Exception as error:
                self._refuse(delivery, error)
                continue
            job.redelivered = maybe_tried or delivery.attempt > 1
            if delivery.attempt > 1:
                job.untried = self.counts.count_untried(delivery)
            delay = self._delayed.admit(job, self.settler.next_round) if job.message.ordering_key else None
            if delay is not None:
                self.counts.add_untried(job)
                self.settler.redeliver(delivery, delay)
                continue
            self.in_flight[job] = None
            if self.lanes.add(job):
                self.executor.enqueue(job)
        self.executor.start()

    def _refuse(self, delivery: Delivery, error: Exception) -> None:
        """Settle a delivery that cannot be read: dead letter it, or do what ``unknown=`` says."""
        outcome = self._unknown if isinstance(error, UnknownType) else "dead"
        if isinstance(error, ConfigurationError):
            outcome = "fail"  # the program is wrong, not the message
        if outcome == "dead":
            # An error that is not ours comes from a callable for the key, or from a validator.
            why: CauseCode = cast(CauseCode, error.code) if isinstance(error, EffectOnceError) else "undecodable"
            self._log_refused(delivery, error, _goes_to_the_dead_letters(why), last=True)
            cause = cause_of(error, why, delivery.attempt, private=self._private)
            self.settler.dead_letter(delivery, cause)
        elif outcome == "delete":
            self._log_refused(delivery, error, "is deleted", last=False)
            self.settler.ack([delivery])
        elif outcome == "retry":
            delay = Retry(None).delay_after(error, max(1, delivery.attempt)) or 0.0
            self._log_refused(delivery, error, retried_in(delay), last=False)
            self.settler.redeliver(delivery, delay)
        else:
            self._fail(error)
            self.settler.redeliver(delivery, 0.0)

    def _log_refused(self, delivery: Delivery, error: Exception, then: str, *, last: bool) -> None:
        what, id = {"queue": self.queue}, delivery.packet.id
        log_failed_attempt(
            what, error, then, last=last, message=id, attempt=max(1, delivery.attempt), private=self._private
        )

    # -- what the executor decides

    def ack(self, jobs: Sequence[Job]) -> None:
        """The effects of ``jobs`` are recorded: ack them. Those behind them may start."""
        for job in jobs:
            if job.redelivered:
                self.counts.forget(job)
        self._advance(jobs)
        self.settler.ack([job.delivery for job in jobs if not (job.stale or job.acked)])

    def ack_batched(self, job: Job) -> None:
        """Ack a job that shared a transaction with later ones of its lane (`Lanes.take_batchable`). The last of them is
        acked by `ack`, which lets the lane move on."""
        self.settler.ack([] if job.stale else [job.delivery])
        self.counts.forget(job)
        self.in_flight.pop(job, None)
        self._room.set()

    def redeliver(self, job: Job, delay: float, *, tried: bool = False) -> None:
        """Deliver ``job`` again after ``delay`` seconds, and what is behind it in its lane after it.

        ``tried``: that was an attempt.
        """
        if job.acked:
            log.warning(
                "queue %s: message %s is not delivered again, since it was acked before it ran (ack='first')",
                self.queue,
                show(job.message.id),
            )
            self._leave(job)
            return
        delay = round(delay, 2)
        behind = self.lanes.remove_waiting(job.lane)
        if job.message.ordering_key:  # without a delay, too: what was given back before it must not come first
            ids = [waiting.message.id for waiting in (job, *behind)]
            self._delayed.delay(job.lane, delay, ids, self.settler.next_round)
        for place, waiting in enumerate((job, *behind)):
            if tried and waiting is job:
                self.counts.add_attempt(job)
            else:
                self.counts.add_untried(waiting)
            if not waiting.stale:
                self.settler.redeliver(waiting.delivery, delay + place * DELAY_STEP_S if delay else 0.0)
            self.in_flight.pop(waiting, None)
        self._advance([job])

    def retry(self, job: Job, error: BaseException, delay: float) -> None:
        """An attempt at ``job`` failed with ``error``: log that, and deliver it again after ``delay`` seconds."""
        self.log_failed(job, error, retried_in(delay), attempt=job.attempt)
        self.redeliver(job, delay, tried=True)

    def redeliver_uncounted(self, job: Job, error: InProgress) -> None:
        """What ``job`` asks for runs elsewhere: deliver it again, each time a bit later, however often. That is neither
        an attempt nor a failure, so it is not logged."""
        delay = error.delay_after(self.counts.add_delayed(job))
        self.redeliver(job, max(delay, MIN_DUPLICATE_DELAY_S))

    def dead_letter(
        self, job: Job, error: BaseException, why: CauseCode, attempts: int, *, first_attempt_at: float = 0.0
    ) -> None:
        """Log that ``job`` is given up because of ``error``, and move it to the dead letters, unless it was acked
        before it ran. Those behind it may start. ``first_attempt_at`` is in seconds since the epoch; 0: not known."""
        attempts = max(0, attempts)
        then = _IS_LOST if job.acked else _goes_to_the_dead_letters(why)
        self.log_failed(job, error, then, attempt=attempts, last=True)
        if job.acked:
            self._leave(job)
            return
        cause = cause_of(error, why, attempts, private=self._private)
        cause.handler, cause.scope, cause.key = job.route.name, job.route.policy.scope, show(job.key, 200)
        cause.first_attempt_at = first_attempt_at
        self.counts.forget(job)
        self.settler.dead_letter(job.delivery, cause)
        self._advance([job])

    def _leave(self, job: Job) -> None:
        """Forget ``job``, whose delivery is acked already. Those behind it may start."""
        self.counts.forget(job)
        self._advance([job])

    def log_failed(self, job: Job, error: BaseException, then: str, *, attempt: int = 0, last: bool = False) -> None:
        """See `log_failed_attempt`."""
        what, scope = {"queue": self.queue, "handler": job.route.name}, job.route.policy.scope
        log_failed_attempt(
            what,
            error,
            then,
            last=last,
            message=job.message.id,
            scope=scope,
            key=job.key,
            attempt=attempt,
            private=self._private,
        )

    def drop(self, job: Job) -> None:
        """Forget ``job``: the broker has given it to another consumer, so it is not settled here."""
        self._advance([job])

    def add_finishing(self, job: Job) -> None:
        """``job`` has run: another one may be received, though this one is not settled yet."""
        self.finishing.add(job)
        self._room.set()

    def _advance(self, jobs: Sequence[Job]) -> None:
        """``jobs``, each the first of its lane, have left; the next ones of their lanes may start."""
        self._room.set()
        for job in jobs:
            following = self.lanes.remove_first(job.lane)
            if following is not None:
                self.executor.enqueue(following)
            self.in_flight.pop(job, None)
            self.finishing.discard(job)
            if job.must_run_alone:
                self.executor.on_suspect_left(job)

    # -- keep

    async def _keep_extending(self, window: float) -> None:
        while True:
            await asyncio.sleep(window / 3)
            await self.extend()

    async def extend(self) -> None:
        """Keep all that is in flight for another window (F54: a long handler outlives the broker's ack window). What is
        another consumer's by now is neither started nor acked."""
        assert self._ack_window_s is not None
        jobs = [job for job in self.in_flight if not job.acked]
        try:
            owned = await self._consumer.extend([job.delivery for job in jobs], self._ack_window_s)
        except BrokerUnavailable as error:
            log.info("queue %s: could not extend the ack window of the messages in flight: %s", self.queue, error)
            return
        for job, still_ours in zip(jobs, owned, strict=True):
            if not still_ours:
                job.stale = True

    # -- stop

    async def close(self, drain_ended: asyncio.Event) -> None:
        """Receive no more, let handlers end until ``drain_ended`` is set, and give the rest back (F58: a deploy loses
        nothing)."""
        self.stopping = True
        await _cancel([self._receiving] if self._receiving is not None else [])
        for pool in self.executor.pools:
            while pool.waiting:
                self.redeliver(pool.waiting.popleft(), 0.0)
        await self.executor.stop(drain_ended)
        for job in self.in_flight:  # in this order: some brokers requeue as they are asked to
            if not (job.stale or job.acked):
                self.settler.redeliver(job.delivery, 0.0)
        self.in_flight.clear()
        async with self.settler.sending:  # a batch under way ends first: cut off, it would be sent twice
            await _cancel(self._tasks)
        for last in (self.settler.send, self._consumer.flush, self._consumer.close):
            try:
                await last()
            except Exception as error:  # it ends in any case; what was not settled is delivered again
                log.warning("queue %s: %s; the broker will redeliver the messages in flight", self.queue, error)


_IS_LOST: Final = "is lost: it was acked before it ran (ack='first'); its record has the outcome"


def _goes_to_the_dead_letters(why: CauseCode) -> str:
    """What happens next to a message that is given up, for `log_failed_attempt`."""
    if why == "in-doubt":
        return "is in doubt, and goes to the dead letters: find out whether its effect happened, then resolve it"
    return f"goes to the dead letters: {why}"


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancel ``tasks`` and wait until they have ended. Before Python 3.12 `asyncio.wait_for` may swallow a
    cancellation, so it is repeated."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=0.1)
