"""Settling deliveries with the broker: acks, redeliveries and dead letters, sent in batches.

The consumer and its executor decide how a delivery is settled; the settler tells the broker. A settlement that could
not be sent stays queued for the next time: settling a delivery twice does no harm, and one that is never settled is
delivered again.

Everything runs on one event loop. What is decided is added to the lists below at any time; only `send` takes it out,
one call at a time, and only after the broker was told. Acks that ride with a fetch are the consumer's from then on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from effectonce.contracts import AckBuffer, Consumer, Delivery, HandlerTracer
from effectonce.core.events import Events
from effectonce.errors import BrokerUnavailable, ConfigurationError
from effectonce.values.durations import span_text

from .dead_letter_cause import Cause

log = logging.getLogger("effectonce")

FETCH_GRACE_S: Final = 0.02
"""How long acks that can ride with a fetch wait for one to begin (F82: a fetch that waits for messages takes none
along). A busy worker begins one every few milliseconds."""

RETRY_PAUSE_S: Final = 1.0
"""How long settlements wait while the broker is away. The receiving task logs the outage, and reconnects."""

UNMOVABLE_DELAY_S: Final = 300.0
"""After how many seconds a message that the dead letters refused is redelivered."""


class DeliverySettler:
    """The settlements of one queue, from their decision until the broker has them."""

    def __init__(
        self, queue: str, worker: str, consumer: Consumer, *, events: Events, tracer: HandlerTracer | None
    ) -> None:
        self.queue = queue
        self.settled = {"acked": 0, "redelivered": 0, "dead": 0}  # by what the broker was asked, for metrics
        #: Whether a fetch is under way, by which consumers that keep acks send them.
        self.fetching = False
        #: Held while a batch is being sent.
        self.sending = asyncio.Lock()
        self.rounds_begun = self.rounds_done = 0  # of `send`; one that fails is not done until a later one is
        self._worker = worker
        self._consumer = consumer
        self._buffer_acks = consumer.buffer_acks if isinstance(consumer, AckBuffer) else None
        self._events = events
        self._tracer = tracer
        self._loop = asyncio.get_running_loop()
        self._acks: list[Delivery] = []
        self._redeliveries: dict[float, list[Delivery]] = {}  # by the delay in seconds
        self._dead: list[tuple[Delivery, Cause]] = []
        self._pending = asyncio.Event()
        self._grace: asyncio.TimerHandle | None = None  # of the acks that wait for a fetch
        self._flush_due = False  # their grace is over

    # -- what is decided

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Ack ``deliveries``: with the next fetch where the broker can, else in a batch of their own."""
        if self._buffer_acks is None:
            self._acks += deliveries
            self._pending.set()
        else:
            self._buffer_acks(deliveries)
            self._count("acked", deliveries, self._loop.time())
            if self._grace is None:
                self._grace = self._loop.call_later(FETCH_GRACE_S, self._end_grace)

    async def ack_now(self, deliveries: Sequence[Delivery]) -> Sequence[bool]:
        """Ack ``deliveries`` without waiting for others, and return which ones were still ours. A consumer may keep
        these acks until its next `flush`."""
        began = self._loop.time()
        answers = await self._consumer.ack(deliveries)
        self._count("acked", deliveries, began)
        return answers

    async def flush(self) -> None:
        """Send the acks that the broker's consumer keeps."""
        await self._consumer.flush()

    def _end_grace(self) -> None:
        self._grace = None
        self._flush_due = True
        self._pending.set()

    @property
    def next_round(self) -> int:
        """The number of the round of `send` that takes along what is decided now."""
        return self.rounds_begun + 1

    def redeliver(self, delivery: Delivery, delay: float) -> None:
        """Let the broker deliver it again, not before ``delay`` seconds. Equal delays go out together."""
        self._redeliveries.setdefault(round(delay, 2), []).append(delivery)
        self._pending.set()

    def dead_letter(self, delivery: Delivery, cause: Cause) -> None:
        """Move it to the dead letters, with ``cause`` on it."""
        cause.worker, cause.queue = self._worker, self.queue
        cause.first_attempt_at = cause.first_attempt_at or cause.given_up_at
        self._dead.append((delivery, cause))
        if self._events.hooks:
            self._events.emit("dead_lettered", cause.scope, cause.key, cause.attempts, detail=cause.why)
        self._pending.set()

    # -- sending it

    async def run(self) -> None:
        """Send settlements as they are decided, until cancelled."""
        while True:
            await self._pending.wait()
            try:
                await self.send()
                if self._flush_due or (self._buffer_acks is None and not self.fetching):
                    self._flush_due = False  # first: acks that are kept while this flush is under way ask for another
                    await self._consumer.flush()
            except BrokerUnavailable as error:
                log.info("queue %s: settlements wait: %s", self.queue, error)
                await asyncio.sleep(RETRY_PAUSE_S)
                self._flush_due = True
                self._pending.set()

    async def send(self) -> None:
        """Send all that is decided. On an error, what was not sent stays queued."""
        async with self.sending:
            self._pending.clear()
            self.rounds_begun += 1
            try:
                await self._send_acks()
                await self._send_redeliveries()
                self.rounds_done = self.rounds_begun
                await self._send_dead()
            except BaseException:
                self._pending.set()
                raise

    async def _send_acks(self) -> None:
        acks = self._acks[:]
        if acks:
            began = self._loop.time()
            await self._consumer.ack(acks)
            del self._acks[: len(acks)]  # what was decided meanwhile is behind them
            self._count("acked", acks, began)

    async def _send_redeliveries(self) -> None:
        for delay in list(self._redeliveries):
            deliveries = self._redeliveries[delay][:]
            began = self._loop.time()
            await self._consumer.nack(deliveries, delay)
            del self._redeliveries[delay][: len(deliveries)]
            if not self._redeliveries[delay]:
                del self._redeliveries[delay]
            self._count("redelivered", deliveries, began)

    async def _send_dead(self) -> None:
        for _ in range(len(self._dead)):
            dead = self._dead.pop(0)
            try:
                await self._move(*dead)
            except BaseException:
                self._dead.append(dead)  # one that cannot be moved does not hold up the others
                raise

    async def _move(self, delivery: Delivery, cause: Cause) -> None:
        """Move one message to the dead letters.

        They may refuse it because the cause leaves too little room for the body: then it goes with a shorter one. If
        they refuse the shortest as well it stays in its queue and is redelivered later: nothing is lost, and the worker
        goes on.
        """
        for attached in cause.shorten():
            began = self._loop.time()
            try:
                await self._consumer.dead_letter(delivery, attached.header())
                self._count("dead", [delivery], began)
                return
            except ConfigurationError as error:
                refusal = error
        log.error(
            "queue %s: the dead letters refused a message (%s); it stays in its queue and is redelivered in %s: %s",
            self.queue,
            cause.why,
            span_text(round(UNMOVABLE_DELAY_S * 1e6)),
            refusal,
        )
        await self._consumer.nack([delivery], UNMOVABLE_DELAY_S)

    def _count(self, outcome: str, deliveries: Sequence[Delivery], began: float) -> None:
        self.settled[outcome] += len(deliveries)
        if self._tracer is not None:
            self._tracer.trace_settlement(self.queue, outcome, deliveries, self._loop.time() - began)
