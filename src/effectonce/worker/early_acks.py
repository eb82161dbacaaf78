"""Acks before the handler runs, for handlers with ``ack="first"``: at most once.

    claim granted ──► ack ──► ready ──handler──► recorded
                        └──► refused, or no answer: the claim is given back, and the delivery too

A crash before the ack leaves the delivery with the broker, and one after it loses the message. In both cases the record
is left claimed: when its lease ends it is in doubt, so that no redelivery runs what may have run before.

Everything runs on one event loop. A job counts as being claimed until its ack has been sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from effectonce.contracts import Delivery
from effectonce.errors import BrokerUnavailable

from .background_tasks import BackgroundTasks, ReportFailure
from .delivery_settler import RETRY_PAUSE_S
from .handler_pool import HandlerPool
from .jobs import Job
from .queue_consumer import QueueConsumer

log = logging.getLogger("effectonce")


class EarlyAcks:
    """The jobs of one queue whose claims are granted, and which start once they are acked."""

    def __init__(
        self,
        consumer: QueueConsumer,
        return_unstarted: Callable[[Job], None],
        fail: ReportFailure,
        on_end: Callable[[], None],
    ) -> None:
        """``return_unstarted`` gives a job's claim and delivery back. ``on_end`` is called after each batch of acks."""
        self._consumer = consumer
        self._return_unstarted = return_unstarted
        self._background = BackgroundTasks(fail, on_end)
        #: What waits for the next `send`, each with the pool that it is to start in.
        self.granted: list[tuple[Job, HandlerPool[Job]]] = []

    def add(self, job: Job, pool: HandlerPool[Job]) -> None:
        """``job`` is to be acked with the next `send`, and then to start in ``pool``."""
        pool.begin_claim(job)
        self.granted.append((job, pool))

    def send(self) -> None:
        """Ack all that were added."""
        granted, self.granted = self.granted, []
        self._background.spawn(self._ack(granted))

    async def _ack(self, granted: list[tuple[Job, HandlerPool[Job]]]) -> None:
        try:
            owned = await self._send_acks([job.delivery for job, _ in granted])
        except Exception as error:  # the broker may have these acks, or not: none of the messages may start
            for job, pool in granted:
                pool.end_claim(job)
                self._return_unstarted(job)
            if not isinstance(error, BrokerUnavailable):  # the worker stops
                raise
            log.warning("queue %s: acks before the start were not confirmed: %s", self._consumer.queue, error)
            return
        for (job, pool), is_owned in zip(granted, owned, strict=True):
            pool.end_claim(job)
            if is_owned:
                job.acked = True
                pool.add_ready(job)
            else:
                job.stale = True
                self._return_unstarted(job)

    async def _send_acks(self, deliveries: Sequence[Delivery]) -> Sequence[bool]:
        """Ack ``deliveries``, and return which were still ours. Acks that the broker's consumer keeps are sent until it
        has them, or the worker stops."""
        settler = self._consumer.settler
        answers = await settler.ack_now(deliveries)
        while True:
            try:
                await settler.flush()
                return answers
            except BrokerUnavailable as error:
                if self._consumer.stopping:
                    raise
                log.info("queue %s: acks before the start wait: %s", self._consumer.queue, error)
                await asyncio.sleep(RETRY_PAUSE_S)

    async def wait(self) -> None:
        """Wait until no ack is under way."""
        await self._background.wait()
