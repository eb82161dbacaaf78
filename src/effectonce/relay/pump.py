"""One lane of a relay: one connection to the database and one to the broker; lease, send, settle."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Sequence, Set
from typing import Any, Final, TypeVar

from msgspec import Struct

from effectonce.contracts import (
    BrokerBackend,
    Contention,
    Envelope,
    OutboxBackend,
    OutboxPort,
    Packet,
    Publisher,
    Tracer,
)
from effectonce.contracts.outbox import Lease, Outgoing, Verdict
from effectonce.core.retry import Retry
from effectonce.core.store_runtime import StoreRuntime
from effectonce.errors import BrokerUnavailable, StoreUnavailable
from effectonce.outbox.outbox import message_of

from .batch_size import Pace
from .publish_batch import Sending, Terms, send

T = TypeVar("T")

log = logging.getLogger("effectonce")

_PAGES: Final = 20  # of rows that wait for others, before the relay lets them wait


class Totals(Struct):
    """What a relay has done so far."""

    published: int = 0
    failed: int = 0
    parked: int = 0
    cleaned: int = 0


class Settings(Struct, kw_only=True):
    """What a relay was told. Spans are in microseconds."""

    runtime: StoreRuntime
    outboxes: OutboxBackend
    table: str | None
    broker: BrokerBackend
    envelope: Envelope
    retry: Retry
    ordered: bool
    batch: int
    span: int
    keep: int
    poll: float
    totals: Totals


class Signals:
    """What the lanes of one relay tell each other."""

    def __init__(self) -> None:
        self.stopping = False
        self.outage: BrokerUnavailable | None = None
        #: Somebody has something to say: there may be rows.
        self.woken = asyncio.Event()
        #: There is more than one lane can carry.
        self.crowded = asyncio.Event()
        #: Held during a lease: two at once would get in each other's way.
        self.turn = asyncio.Lock()
        #: Queues that did not answer when they were last sent to: the others go first.
        self.mute: set[str] = set()


class Lane:
    """See the module. One round at a time."""

    def __init__(self, settings: Settings, signals: Signals, port: OutboxPort, publisher: Publisher) -> None:
        self.port = port
        self._settings = settings
        self._signals = signals
        self._publisher = publisher
        self._unanswered_owner: bytes | None = None  # of the lease whose reply did not come
        self._time = asyncio.get_running_loop().time
        self._window = settings.span / 1e6 * 0.8
        self._pace = Pace(settings.batch, self._window)
        self._terms = Terms(
            encode=self._encode,
            retry=settings.retry,
            ordered=settings.ordered,
            capabilities=settings.broker.capabilities,
            mute=signals.mute,
        )

    def _encode(self, row: Outgoing) -> Packet:
        return self._settings.envelope.encode(message_of(row), row.destination)

    async def round(self, pages: int = _PAGES) -> bool:
        """Lease, send, settle; whether there was anything to send. ``pages``: how many of rows that wait for others
        are looked through for one that does not.

        `StoreUnavailable` and `Contention` say that nothing could be leased. An outage of the broker is among the
        signals.
        """
        signals = self._signals
        if signals.mute:
            # It may be one queue that does not answer, whose rows stand before those of all others: these first.
            until = self._time() + self._window
            while await self._leg(pages, frozenset(signals.mute)):
                if signals.outage or signals.stopping or self._time() > until:
                    break
        return not signals.stopping and await self._leg(pages)

    async def _leg(self, pages: int, without: Set[str] = frozenset()) -> bool:
        """A round, in which no row goes to the queues ``without``."""
        signals = self._signals
        # The database may have granted a lease whose reply was lost: asked again with its owner, it gives those rows
        # and prolongs their lease. Under a new owner they would wait until the old lease is over.
        owner = self._unanswered_owner or os.urandom(16)
        self._unanswered_owner = owner
        began = self._time()
        rows = await self._lease(owner, pages, without)
        if not rows:
            self._unanswered_owner = None
            signals.outage = None
            return False
        # Settled while the lease still holds, whatever the clocks' rates and the way to the database.
        deadline = began + self._window
        sending = Sending(await self._alone(owner, rows))
        self._unanswered_owner = None
        leased = self._time()
        try:
            await send(sending, self._publisher, self._terms, lambda: 0.0 if signals.stopping else deadline)
            signals.outage = sending.outage
        finally:
            # Cancelled or not: what is known is settled, and what is not goes to whoever comes next.
            await self._settle(owner, sending.release(), deadline)
        if sending.late:
            self._pace.late(len(rows))
        elif sending.rows and not sending.outage:
            self._pace.sent(sending.rows, self._time() - leased)
        self._report(sending, self._time() - began)
        return True

    async def _lease(self, owner: bytes, pages: int, without: Set[str]) -> list[Outgoing]:
        settings, signals = self._settings, self._signals
        take = self._pace.take
        lease = Lease(
            owner=owner,
            limit=settings.batch,
            take=take,
            span=settings.span,
            ordered=settings.ordered,
            without=sorted(without),
        )
        for _ in range(pages):
            async with signals.turn:
                leased = await insist(lambda: self.port.lease(lease))
            if len(leased.rows) == take:
                signals.crowded.set()
            elif not signals.stopping:
                signals.crowded.clear()
            lease.after = leased.after or lease.after
            if leased.rows or not leased.more:
                return leased.rows
        return []

    async def _alone(self, owner: bytes, rows: list[Outgoing]) -> list[Outgoing]:
        """The rows to send now. Where one has been leased more often than it may be tried, it (or its neighbour) takes
        relays down with it: then one goes alone, so that only the guilty one is parked in the end (F20)."""
        most = self._settings.retry.max_attempts
        if most is None or all(row.attempts <= most for row in rows):
            return rows
        first, verdicts = rows[0], [Verdict(row.seq, "pending", refund=True) for row in rows[1:]]
        if first.attempts > 2 * most:
            error = f"it was being sent {first.attempts - 1} times when its relay died or was cut off"
            verdicts.append(Verdict(first.seq, "parked", error=error, refund=True))
            self._settings.totals.parked += 1
            self._settings.runtime.emit("parked", first.destination, first.id, first.attempts, detail=error)
        if verdicts:
            await insist(lambda: self.port.settle(owner, verdicts, self._settings.keep))
        return [] if first.attempts > 2 * most else [first]

    async def _settle(self, owner: bytes, verdicts: Sequence[Verdict], deadline: float) -> None:
        """Say what became of them, for as long as anybody may believe it: after the lease another has them."""
        pause = 0.05
        while verdicts:
            try:
                await insist(lambda: self.port.settle(owner, verdicts, self._settings.keep))
                self._signals.woken.set()  # a lane may wait for those behind these
                return
            except (StoreUnavailable, Contention) as error:
                self._settings.runtime.emit("relay_paused", seconds=pause, detail=str(error))
                if self._time() + pause > deadline or self._signals.stopping:
                    log.warning("%d messages stay unsettled, and go again: %s", len(verdicts), error)
                    return
                await asyncio.sleep(pause)
                pause = min(2 * pause, 1.0)

    def _report(self, sending: Sending, seconds: float) -> None:
        runtime, totals = self._settings.runtime, self._settings.totals
        states = [verdict.state for verdict in sending.verdicts.values()]
        totals.published += states.count("published")
        totals.parked += states.count("parked")
        totals.failed += len(sending.failures)
        for row, error in sending.failures:
            parked = sending.verdicts[row.seq].state == "parked"
            what = "and parked" if parked else "and is tried again"
            log.warning(
                "message %s to %s was refused (attempt %d) %s: %s",
                row.message_id,
                row.destination,
                row.attempts,
                what,
                error,
            )
            runtime.emit(
                "parked" if parked else "publish_failed", row.destination, row.id, row.attempts, detail=str(error)
            )
        if runtime.hooks:
            for row in sending.rows:
                if sending.verdicts[row.seq].state == "published":
                    runtime.emit("published", row.destination, row.id, row.attempts)
        if runtime.tracer is not None:
            self._trace(runtime.tracer, sending, seconds)

    def _trace(self, tracer: Tracer, sending: Sending, seconds: float) -> None:
        system = self._settings.broker.capabilities.name
        for row, error in sending.failures:
            tracer.relayed(system, row, seconds, error)
        for row in sending.rows:
            if sending.verdicts[row.seq].state == "published":
                tracer.relayed(system, row, seconds, None)


async def insist(ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """What ``ask()`` gives, asked again where the connection broke or others were in the way: a repeated lease gives
    the same rows, and a repeated settlement changes nothing."""
    for _ in range(3):
        try:
            return await ask()
        except (StoreUnavailable, Contention) as error:
            if type(error) is StoreUnavailable:
                raise
    return await ask()
