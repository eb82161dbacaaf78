"""`RelayPump`: lease, publish, settle, over one connection to the database and one to the broker.

Nothing is open in the database while rows are published. If the relay dies after the broker has a row and before it is
settled, the row's lease ends, and it is sent again with the same id (F42). So every row that was leased is settled or
given back before the next lease, even when the pump is cancelled; if the database does not answer, when its lease ends.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Sequence, Set
from typing import Any, Final, TypeVar

from effectonce.contracts import Contention, OutboxPort, Publisher
from effectonce.contracts.outbox import LeaseRequest, OutboxRow, RowOutcome
from effectonce.core.failure_log import log_failed_attempt, retried_in
from effectonce.errors import PermanentFailure, StoreUnavailable

from .batch_size import AdaptiveBatchSize
from .publish_batch import PublishBatch
from .settings import RelaySettings, RelayState

T = TypeVar("T")

log = logging.getLogger("effectonce")

#: Pages of blocked rows that one round reads through in search of a row that can go.
_MAX_BLOCKED_PAGES: Final = 20
#: The part of a lease in which rows are published and settled; the rest covers clock drift and the way to the database.
_USABLE_LEASE: Final = 0.8
_PARKED: Final = "is parked: find out why, then unpark it"
_FIRST_SETTLE_PAUSE_S: Final = 0.05
_MAX_SETTLE_PAUSE_S: Final = 1.0


class RelayPump:
    """Moves rows from the outbox to the broker, one round at a time."""

    def __init__(self, settings: RelaySettings, state: RelayState, port: OutboxPort, publisher: Publisher) -> None:
        self.port = port
        self._settings = settings
        self._state = state
        self._publisher = publisher
        self._time = asyncio.get_running_loop().time
        self._window_s = settings.lease_us / 1e6 * _USABLE_LEASE
        self._batch_size = AdaptiveBatchSize(settings.max_batch, self._window_s)

    async def run_round(self, pages: int = _MAX_BLOCKED_PAGES) -> bool:
        """Lease, publish and settle once. Returns whether there were rows. ``pages``: how many pages of blocked rows
        to read through in search of one that can go.

        Raises `StoreUnavailable` or `Contention` where nothing could be leased. An outage of the broker is set on the
        state instead.
        """
        state = self._state
        if state.unresponsive:
            # One queue may be unresponsive while its rows stand before those of all others: the others go first.
            until = self._time() + self._window_s
            while await self._pump_once(pages, frozenset(state.unresponsive)):
                if state.outage or state.stopping or self._time() > until:
                    break
        return not state.stopping and await self._pump_once(pages)

    async def _pump_once(self, pages: int, without: Set[str] = frozenset()) -> bool:
        """Lease, publish and settle, without rows to the queues ``without``. Returns whether there were rows."""
        state = self._state
        # The database may have granted a lease whose reply was lost: asked again with its owner, it gives those rows
        # and prolongs their lease. Under a new owner they would wait until the old lease is over.
        owner, unheard_until = state.unheard_leases.popleft() if state.unheard_leases else (os.urandom(16), 0.0)
        began = self._time()
        try:
            rows = await self._lease(owner, pages, without)
            chosen = await self._isolate_suspect(owner, rows) if rows else []
        except BaseException:
            state.unheard_leases.append((owner, self._time() + self._settings.lease_us / 1e6))
            raise
        if not rows:
            if self._time() < unheard_until:
                state.unheard_leases.append((owner, unheard_until))
            state.outage = None
            return False
        deadline = began + self._window_s
        batch = PublishBatch(chosen, self._publisher, self._settings, state, deadline)
        leased_at = self._time()
        try:
            await batch.publish()
            state.outage = batch.outage
        finally:
            # Even when cancelled: known outcomes are settled, and the other rows are free for the next lease.
            await self._settle(owner, batch.release_rest(), deadline)
        if batch.timed_out:
            self._batch_size.record_timeout(len(rows))
        elif batch.rows and not batch.outage:
            self._batch_size.record_published(batch.rows, self._time() - leased_at)
        self._report(batch, self._time() - began)
        return True

    async def _lease(self, owner: bytes, pages: int, without: Set[str]) -> list[OutboxRow]:
        """Lease rows for ``owner``, reading up to ``pages`` pages of rows that other rows block. [] if none can go."""
        settings, state = self._settings, self._state
        take = self._batch_size.rows
        request = LeaseRequest(
            owner=owner,
            limit=settings.max_batch,
            take=take,
            lease_us=settings.lease_us,
            ordered=settings.ordered,
            without=sorted(without),
        )
        for _ in range(pages):
            async with state.lease_lock:
                leased = await retry_request(lambda: self.port.lease(request))
            if len(leased.rows) == take:
                state.crowded.set()
            elif not state.stopping:
                state.crowded.clear()
            request.after = leased.after or request.after
            if leased.rows or not leased.more:
                return leased.rows
        return []

    async def _isolate_suspect(self, owner: bytes, rows: list[OutboxRow]) -> list[OutboxRow]:
        """Choose the rows to publish now.

        A row that was leased more often than it may be tried, or one of its batch, takes relays down with it (F20: a
        message that kills its process). Then the first row goes alone, and the others go back, until only the guilty
        one has twice as many leases as attempts: that one is parked.
        """
        max_attempts = self._settings.retry.max_attempts
        if max_attempts is None or all(row.attempts <= max_attempts for row in rows):
            return rows
        suspect = rows[0]
        outcomes = [RowOutcome(row.seq, "pending", refund=True) for row in rows[1:]]
        guilty = suspect.attempts > 2 * max_attempts
        error = f"it was being sent {suspect.attempts - 1} times when its relay died or was cut off"
        if guilty:
            outcomes.append(RowOutcome(suspect.seq, "parked", error=error, refund=True))
        if outcomes:
            await retry_request(lambda: self.port.settle(owner, outcomes, self._settings.keep_us))
        if not guilty:
            return [suspect]
        # Only now: while the store is away, the row is not parked, and this is tried again.
        self._settings.totals.parked += 1
        self._log_failed(suspect, PermanentFailure(error), _PARKED, last=True)
        self._settings.runtime.emit("parked", suspect.destination, suspect.id, suspect.attempts, detail=error)
        return []

    async def _settle(self, owner: bytes, outcomes: Sequence[RowOutcome], deadline: float) -> None:
        """Record the outcomes. While the store is away, retry until ``deadline``: after it another relay may have
        leased the rows, and they go out again with the same ids (F42)."""
        pause = _FIRST_SETTLE_PAUSE_S
        while outcomes:
            try:
                await retry_request(lambda: self.port.settle(owner, outcomes, self._settings.keep_us))
                self._state.rows_expected.set()  # rows behind these may have become due
                return
            except (StoreUnavailable, Contention) as error:
                self._settings.runtime.emit("relay_paused", seconds=pause, detail=str(error))
                if self._time() + pause > deadline or self._state.stopping:
                    log.warning(
                        "could not settle %d messages before their lease ends; they will be sent again: %s",
                        len(outcomes),
                        error,
                    )
                    return
                await asyncio.sleep(pause)
                pause = min(2 * pause, _MAX_SETTLE_PAUSE_S)

    def _report(self, batch: PublishBatch, seconds: float) -> None:
        """Count, log, emit and trace the outcomes of ``batch``."""
        runtime, totals = self._settings.runtime, self._settings.totals
        published = [row for row in batch.rows if batch.outcomes[row.seq].state == "published"]
        totals.published += len(published)
        totals.parked += sum(outcome.state == "parked" for outcome in batch.outcomes.values())
        totals.failed += len(batch.failures)
        for row, error in batch.failures:
            outcome = batch.outcomes[row.seq]
            parked = outcome.state == "parked"
            self._log_failed(row, error, _PARKED if parked else retried_in(outcome.wait_us / 1e6), last=parked)
            event = "parked" if parked else "publish_failed"
            runtime.emit(event, row.destination, row.id, row.attempts, detail=str(error))
        for row in published:
            runtime.emit("published", row.destination, row.id, row.attempts)
        if runtime.tracer is not None:
            broker = self._settings.broker_backend.capabilities.name
            for row, failure in (*batch.failures, *((row, None) for row in published)):
                runtime.tracer.trace_relay(broker, row, seconds, failure)

    def _log_failed(self, row: OutboxRow, error: Exception, then: str, *, last: bool) -> None:
        """See `log_failed_attempt`."""
        log_failed_attempt(
            {"relay": row.destination},
            error,
            then,
            last=last,
            message=row.message_id,
            key=row.ordering_key or "",
            attempt=row.attempts,
            private=self._settings.runtime.privacy is not None,
        )


async def retry_request(request: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Return the reply to ``request()``, sent up to four times where the connection broke or the rows were contended.

    Safe to repeat: the same lease gives the same rows, and a repeated settlement changes nothing. A database that is
    away (`StoreUnavailable` itself, not a broken connection) is raised at once: the caller waits for it.
    """
    for _ in range(3):
        try:
            return await request()
        except (StoreUnavailable, Contention) as error:
            if type(error) is StoreUnavailable:
                raise
    return await request()
