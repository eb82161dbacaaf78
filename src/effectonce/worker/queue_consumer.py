"""One queue: what has been received and is not settled yet.

A line receives, gives each job to the `Discipline` when its turn in its lane has come, and sends what the discipline
decides: `done`, `later` or `dead`. Of one lane (an ordering key, or one key and its duplicates) only the first is ever
given out; one that is delayed takes those behind it along, so that they stay behind it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct

from effectonce.contracts import Consumer, Delivery, HandlerTracer
from effectonce.core.events import Events
from effectonce.core.retry import Retry
from effectonce.errors import BrokerUnavailable, ConfigurationError, EffectOnceError, show
from effectonce.values.backoff import Backoff

from .handler_pool import Slots
from .jobs import Cause, Job, cause_of
from .message_reader import Intake, UnknownType

log = logging.getLogger("effectonce")

#: The longest `receive` waits for the first message.
WAIT = 1.0
#: Those behind a delayed message come this much later than what is before them, in seconds.
STEP = 0.02
#: For how long after its time the first of a delayed lane is waited for.
GRACE = 2.0
#: How many delayed lanes and messages are remembered.
MANY = 10_000
#: After how many seconds a message is given up again that the dead letters have refused.
REFUSED = 300.0

Unknown = Literal["dead", "delete", "retry", "fail"]


class Discipline(Protocol):
    """How jobs of a line are run so that their effects happen once: by leases, or in transactions."""

    @property
    def slots(self) -> Sequence[Slots[Any]]: ...

    @property
    def ending(self) -> int:
        """How many have run, and are only not settled yet: what comes next need not wait for them."""
        ...

    def waiting(self, job: Job) -> None:
        """It may start, as soon as there is room."""
        ...

    def start(self) -> None:
        """Start what there is room for."""
        ...

    async def stop(self, over: asyncio.Event) -> None:
        """Start nothing more, let what runs come to its end until it is ``over``, then cancel the rest."""
        ...


class _Held(Struct):
    """The messages of an ordering key that were given back, in their order, and when the first is to come again."""

    until: float
    ids: deque[str]


class Line:
    """See the module. Everything here runs on one event loop."""

    def __init__(
        self,
        queue: str,
        worker: str,
        consumer: Consumer,
        intake: Intake,
        *,
        prefetch: int,
        batch: int,
        window: float | None,
        counts: bool,
        unknown: Unknown,
        fail: Callable[[BaseException], None],
    ) -> None:
        self.queue = queue
        self.worker = worker
        self.stopping = False
        self.hand: set[Job] = set()
        self.discipline: Discipline
        self._consumer = consumer
        self._intake = intake
        self._prefetch = prefetch
        self._batch = batch
        self._window = window  # of the broker, where it can be extended
        self._counts = counts  # the broker counts deliveries; else we do, as far as this process sees them
        self._tries: dict[str, int] = {}  # of what was delayed here, by message id
        self._spared: dict[str, int] = {}  # and how often it was delivered only to be delayed
        self._received = 0
        self.tracer: HandlerTracer | None = None
        self.events = Events()
        self.backoff = Backoff(f"queue {queue}")
        self.told = {"acked": 0, "delayed": 0, "dead": 0}  # how many the broker was told so of
        self._unknown = unknown
        self._fail = fail
        self._loop = asyncio.get_running_loop()
        self._lanes: dict[str, deque[Job] | None] = {}  # what is in hand of a lane, behind its first
        self._held: dict[str, _Held] = {}  # by ordering key
        self._acks: list[Delivery] = []
        self._laters: list[tuple[float, Delivery]] = []
        self._deads: list[tuple[Delivery, Cause]] = []
        self._due = asyncio.Event()
        self._room = asyncio.Event()
        self._receiving = False
        self._settling = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def received(self) -> int:
        """How many deliveries have come."""
        return self._received

    def open(self) -> None:
        """Begin to consume."""
        work = {"fetch": self._fetch, "settle": self._settle}
        if self._window is not None:
            work["extend"] = self._extend
        for name, each in work.items():
            task = self._loop.create_task(self._watched(each), name=f"effectonce {name} {self.queue}")
            self._tasks.append(task)

    async def _watched(self, work: Callable[[], Any]) -> None:
        try:
            await work()
        except Exception as error:
            self._fail(error)

    # -- receiving

    async def _fetch(self) -> None:
        enough = max(1, min(self._batch, self._prefetch // 4))
        while not self.stopping:
            room = self._prefetch - len(self.hand) + self.discipline.ending
            if room < enough:
                self._room.clear()
                self._due.set()  # so that acks do not wait for the next `receive`
                await self._room.wait()
                continue
            try:
                self._receiving = True
                deliveries = await self._consumer.receive(min(room, self._batch), WAIT)
            except BrokerUnavailable as error:
                await asyncio.sleep(self.backoff.failed(error))
                continue
            finally:
                self._receiving = False
            self.backoff.worked()
            if deliveries:
                self._take_in(deliveries)

    def _take_in(self, deliveries: Sequence[Delivery]) -> None:
        read, lanes, hand = self._intake.read, self._lanes, self.hand
        # Where nobody counts, what comes first may be what the last process left behind.
        early = not self._counts and self._received <= self._prefetch
        self._received += len(deliveries)
        for delivery in deliveries:
            if not self._counts:
                delivery.attempt = self._tries.get(delivery.packet.id, 0) + 1
            try:
                job = read(delivery)
            except Exception as error:
                self._refuse(delivery, error)
                continue
            lane = job.lane
            job.again = early or delivery.attempt > 1
            if self._spared:
                job.spared = self._spared.get(delivery.packet.id, 0)
            if self._held and self._is_held(job):
                continue
            hand.add(job)
            if lane not in lanes:
                lanes[lane] = None
                self.discipline.waiting(job)
            else:
                behind = lanes[lane]
                if behind is None:
                    lanes[lane] = deque((job,))
                else:
                    behind.append(job)
        self.discipline.start()

    def _is_held(self, job: Job) -> bool:
        """Whether something before it in its lane is delayed, so that it has to come later too."""
        held = self._held.get(job.lane)
        if held is None:
            return False
        left = held.until - self._loop.time()
        if left < -GRACE or held.ids[0] == job.message.id:  # it is the first; or another consumer has got that
            held.ids.popleft()
            if left < -GRACE or not held.ids:
                del self._held[job.lane]
            return False
        if job.message.id not in held.ids:
            held.ids.append(job.message.id)
        place = held.ids.index(job.message.id)
        self._spare(job)
        self._laters.append((round(max(left, 0.0) + place * STEP, 2), job.delivery))
        self._due.set()
        return True

    def _refuse(self, delivery: Delivery, error: Exception) -> None:
        """It cannot be handled, now or later: to the dead letters with it, or as the worker says for unknown types."""
        self._due.set()
        then = self._unknown if isinstance(error, UnknownType) else "dead"
        if isinstance(error, ConfigurationError):
            then = "fail"  # of the program, not of the message
        if then == "dead":
            why = "" if isinstance(error, EffectOnceError) else "undecodable"  # a callable for the key, or a validator
            self._bury(delivery, cause_of(error, why, attempts=delivery.attempt))
        elif then == "delete":
            log.warning("queue %s: deleted: %s", self.queue, error)
            self._acks.append(delivery)
        elif then == "retry":
            self._laters.append((Retry(None).after(error, max(1, delivery.attempt)) or 0.0, delivery))
        else:
            self._fail(error)
            self._laters.append((0.0, delivery))

    # -- settling

    def done(self, jobs: Sequence[Job]) -> None:
        """Their effects are recorded: ack them."""
        self._ack(jobs)
        self.hand.difference_update(jobs)
        lanes = self._lanes
        for job in jobs:
            behind = lanes.pop(job.lane, None)
            if behind:
                self._follow(job.lane, behind)
        self._room.set()

    def _ack(self, jobs: Sequence[Job]) -> None:
        self._acks += [job.delivery for job in jobs if not job.stale]
        self._due.set()
        if self._tries or self._spared:
            for job in jobs:
                self._forget(job)

    def with_those_behind(self, job: Job, limit: int, may: Callable[[Job], bool]) -> list[Job]:
        """``job`` and up to ``limit - 1`` that wait behind it in its lane, for the same handler, and ``may`` run with
        it; in their order. Each is then settled by `done_before_others` or, the last of them, as any job is."""
        jobs = [job]
        behind = self._lanes.get(job.lane)
        while behind and len(jobs) < limit and behind[0].route is job.route and may(behind[0]):
            jobs.append(behind.popleft())
        return jobs

    def put_back(self, jobs: Sequence[Job]) -> None:
        """Those of a lane that ran together with its first and are not done: behind the first again."""
        behind = self._lanes.get(jobs[0].lane) or deque()
        behind.extendleft(reversed(jobs))
        self._lanes[jobs[0].lane] = behind

    def done_before_others(self, job: Job) -> None:
        """As `done`, of one that has others of its lane, which ran together with it, behind it."""
        self._ack([job])
        self.hand.discard(job)

    def later(self, job: Job, delay: float, *, tried: bool = False) -> None:
        """Deliver it again after ``delay`` seconds, and what is behind it in its lane after it. ``tried``: that was an
        attempt."""
        delay = round(delay, 2)  # so that many go together
        behind = self._lanes.get(job.lane) or ()
        if job.message.ordering_key:  # with no delay, too: what was given back before it must not come first
            self._hold(job.lane, delay, deque(each.message.id for each in (job, *behind)))
        self._lanes[job.lane] = None
        for at, each in enumerate((job, *behind)):
            if not (tried and each is job):
                self._spare(each)
            elif not self._counts:
                _keep(self._tries, job.delivery.packet.id, job.delivery.attempt)
            if not each.stale:
                self._laters.append((delay + at * STEP if delay else 0.0, each.delivery))
            self.hand.discard(each)
        self._due.set()
        self._leave(job)

    def dead(self, job: Job, cause: Cause) -> None:
        """Move it to the dead letters. What is behind it goes on."""
        cause.handler, cause.scope, cause.key = job.route.name, job.route.policy.scope, show(job.key, 200)
        self._forget(job)
        self._bury(job.delivery, cause)
        self._leave(job)

    def drop(self, job: Job) -> None:
        """It is another consumer's by now."""
        self._leave(job)

    def _bury(self, delivery: Delivery, cause: Cause) -> None:
        cause.worker, cause.queue = self.worker, self.queue
        cause.first = cause.first or cause.last
        log.warning("queue %s: a message goes to the dead letters, %s: %s", self.queue, cause.why, cause.text)
        self._deads.append((delivery, cause))
        if self.events.hooks:
            self.events.emit("dead_lettered", cause.scope, cause.key, cause.attempts, detail=cause.why)
        self._due.set()

    def _spare(self, job: Job) -> None:
        """It goes back untried, and the broker counts that."""
        if self._counts:
            _keep(self._spared, job.delivery.packet.id, job.spared + 1)

    def _forget(self, job: Job) -> None:
        self._tries.pop(job.delivery.packet.id, None)
        self._spared.pop(job.delivery.packet.id, None)

    def _leave(self, job: Job) -> None:
        self.hand.discard(job)
        behind = self._lanes.pop(job.lane, None)
        if behind:
            self._follow(job.lane, behind)
        self._room.set()

    def make_room(self) -> None:
        """Some have run: more may be received, though these are not settled yet."""
        self._room.set()

    def _follow(self, lane: str, behind: deque[Job]) -> None:
        """The first of a lane has left; the next may start."""
        first = behind.popleft()
        self._lanes[lane] = behind or None
        self.discipline.waiting(first)

    def _hold(self, lane: str, delay: float, ids: deque[str]) -> None:
        """``ids`` come again, in this order, before those that were given back earlier and are still to come."""
        now = self._loop.time()
        before = self._held.get(lane)
        if before is not None and before.until >= now - GRACE:
            first = frozenset(ids)
            ids.extend(id for id in before.ids if id not in first)
        if len(self._held) >= MANY:
            self._held = {each: held for each, held in self._held.items() if held.until > now - GRACE}
        self._held[lane] = _Held(now + delay, ids)

    async def _settle(self) -> None:
        while True:
            await self._due.wait()
            try:
                await self.send_settlements()
                if not self._receiving:
                    await self._consumer.flush()
            except BrokerUnavailable as error:  # `receive` says so, aloud, and connects again
                log.info("queue %s: settlements wait: %s", self.queue, error)
                await asyncio.sleep(1.0)

    async def send_settlements(self) -> None:
        """Send what is decided. What was not sent stays, for the next time: settling twice harms nobody."""
        consumer = self._consumer
        async with self._settling:
            self._due.clear()
            acks, self._acks = self._acks, []
            laters, self._laters = self._laters, []
            deads, self._deads = self._deads, []
            try:
                if acks:
                    began = self._loop.time()
                    await consumer.ack(acks)
                    self._was_told("acked", acks, began)
                    acks = []
                while laters:
                    delay = laters[0][0]
                    began, together = self._loop.time(), [each for when, each in laters if when == delay]
                    await consumer.nack(together, delay)
                    self._was_told("delayed", together, began)
                    laters = [each for each in laters if each[0] != delay]
                for _ in range(len(deads)):
                    deads.append(deads.pop(0))  # one that cannot be moved does not hold up the others
                    await self._move(*deads[-1])
                    del deads[-1]
            except BaseException:
                self._acks, self._laters, self._deads = acks + self._acks, laters + self._laters, deads + self._deads
                self._due.set()
                raise

    def _was_told(self, what: str, deliveries: Sequence[Delivery], began: float) -> None:
        self.told[what] += len(deliveries)
        if self.tracer is not None:
            self.tracer.settled(self.queue, what, deliveries, self._loop.time() - began)

    async def _move(self, delivery: Delivery, cause: Cause) -> None:
        """To the dead letters. Where they do not take it, since the cause leaves no room for the body, with less of
        that; and where they do not even so, it stays in its queue: that ends no worker, and loses nothing."""
        for each in (cause, cause.brief()):
            began = self._loop.time()
            try:
                await self._consumer.dead_letter(delivery, each.header())
                self._was_told("dead", [delivery], began)
                return
            except ConfigurationError as error:
                refusal = error
        log.error("queue %s: a message that is given up stays here, %s: %s", self.queue, cause.why, refusal)
        await self._consumer.nack([delivery], REFUSED)

    async def _extend(self) -> None:
        assert self._window is not None
        while True:
            await asyncio.sleep(self._window / 3)
            await self.extend()

    async def extend(self) -> None:
        """Keep all that is in hand (F54). What is another's by now is not started, and not acked."""
        assert self._window is not None
        jobs = list(self.hand)
        try:
            kept = await self._consumer.extend([job.delivery for job in jobs], self._window)
        except BrokerUnavailable as error:
            log.info("queue %s: what is in hand was not extended: %s", self.queue, error)
            return
        for job, still in zip(jobs, kept, strict=True):
            if not still:
                job.stale = True

    # -- the end

    async def close(self, over: asyncio.Event) -> None:
        """Receive no more; drain until it is ``over``; give the rest back (F58)."""
        self.stopping = True
        await _end(self._tasks[:1])
        for slots in self.discipline.slots:
            while slots.waiting:
                self.later(slots.waiting.popleft(), 0.0)
        await self.discipline.stop(over)
        for job in tuple(self.hand):
            self.hand.discard(job)
            self._laters.append((0.0, job.delivery))
        async with self._settling:  # what is under way ends first: cut off, it would be done again, a dead letter twice
            await _end(self._tasks)
        for last in (self.send_settlements, self._consumer.flush, self._consumer.close):
            try:
                await last()
            except Exception as error:  # it ends in any case; what was not said to the broker comes again
                log.warning("queue %s: %s; what was in hand comes again", self.queue, error)


def _keep(counts: dict[str, int], id: str, count: int) -> None:
    if id:
        if len(counts) >= MANY:
            del counts[next(iter(counts))]
        counts[id] = count


async def _end(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancel them, and wait until they have ended. Before Python 3.12 `asyncio.wait_for` may swallow a cancellation."""
    rest = set(tasks)
    while rest:
        for task in rest:
            task.cancel()
        _, rest = await asyncio.wait(rest, timeout=0.1)
