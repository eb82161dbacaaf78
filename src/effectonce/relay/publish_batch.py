"""`PublishBatch`: publishes one lease of outbox rows, in order. It has the outcome of each, and touches no database."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final

from effectonce.contracts import Packet, Publisher
from effectonce.contracts.outbox import BLOCKED_ROW_RECHECK_US, OutboxRow, RowOutcome
from effectonce.errors import BrokerUnavailable, ConfigurationError, show
from effectonce.outbox.outbox import message_of

from .settings import RefusedQueue, RelaySettings, RelayState

FIRST_REFUSED_QUEUE_DELAY_S: Final = 1.0
MAX_REFUSED_QUEUE_DELAY_S: Final = 60.0
"""How long the rows of a queue that is missing or cannot be used wait: each time twice as long, up to this."""
_MAX_DOUBLINGS: Final = 10

OrderingLine = tuple[str, str]  # destination and ordering key


class PublishBatch:
    """One lease of rows while it is published.

    ``until``: when to stop, in seconds of the loop's clock. A stop of the relay takes effect before the next step. It
    belongs to one pump; the state is shared with the other pump, on the same event loop. An outcome is set only when
    it is known: a row without one was perhaps sent, and goes back to be sent again with the same id.
    """

    def __init__(
        self, rows: list[OutboxRow], publisher: Publisher, settings: RelaySettings, state: RelayState, until: float
    ) -> None:
        self.rows = rows
        #: By ``seq``. Grows as the broker answers.
        self.outcomes: dict[int, RowOutcome] = {}
        self.failures: list[tuple[OutboxRow, Exception]] = []
        #: The broker was away: rows without an outcome were perhaps sent, and perhaps not.
        self.outage: BrokerUnavailable | None = None
        #: The broker had not confirmed when the lease was about to end.
        self.timed_out = False
        self._publisher = publisher
        self._settings = settings
        self._capabilities = settings.broker_backend.capabilities
        self._state = state
        self._unresponsive = state.unresponsive
        self._refused_queues = state.refused_queues
        self._time = asyncio.get_running_loop().time
        self._until = until
        #: By line: the outcome of the row that failed, which blocks the rows behind it.
        self._blocked_lines: dict[OrderingLine, RowOutcome] = {}

    async def publish(self) -> None:
        """Publish the rows queue by queue, until it has to stop. Broker errors become outcomes; only a defect or a
        cancellation is raised."""
        rows_by_queue: dict[str, list[OutboxRow]] = {}
        for row in self.rows:
            rows_by_queue.setdefault(row.destination, []).append(row)
        failed_queues = 0
        for queue in sorted(rows_by_queue, key=self._unresponsive.__contains__):
            if self._seconds_left <= 0 or failed_queues == 2:  # the broker itself may be away: wait for no third
                return
            if self._defer_if_refused(queue, rows_by_queue[queue]):
                continue
            if await self._publish_queue(queue, rows_by_queue[queue]):
                self._unresponsive.discard(queue)
            else:
                self._unresponsive.add(queue)
                failed_queues += 1

    def release_rest(self) -> list[RowOutcome]:
        """Give rows without an outcome back as if they had never been leased. Returns the outcomes of all rows."""
        for row in self.rows:
            if row.seq not in self.outcomes:
                self.outcomes[row.seq] = RowOutcome(row.seq, "pending", refund=True)
        return list(self.outcomes.values())

    @property
    def _seconds_left(self) -> float:
        return 0.0 if self._state.stopping else self._until - self._time()

    async def _publish_queue(self, queue: str, rows: Sequence[OutboxRow]) -> bool:
        """Publish ``rows`` to ``queue``, in as few calls as their order allows. False: the broker did not answer."""
        for chunk in self._chunks(rows):
            if self._seconds_left <= 0:
                return True
            packets = self._encode_rows(chunk)
            try:
                if packets:
                    await self._publish(queue, packets)
            except ConfigurationError as error:
                # The queue is at fault, not a row of it, and other queues still work: all its rows wait, uncounted.
                self._refuse_queue(queue, rows, error)
                return True
            except BrokerUnavailable as error:
                self.outage = error
                return False
            except TimeoutError:
                self.outage = BrokerUnavailable("the broker did not confirm before the lease was over")
                self.timed_out = True
                return False
        self._refused_queues.pop(queue, None)
        return True

    def _chunks(self, rows: Sequence[OutboxRow]) -> Iterator[Sequence[OutboxRow]]:
        """Cut ``rows`` into calls. Where order matters and the broker does not keep it within one call, a chunk has
        at most one row of each line."""
        size = self._capabilities.batch
        waves: list[Sequence[OutboxRow]] = [rows]
        if self._settings.ordered and not self._capabilities.ordered_publish:
            waves = _split_by_line(rows)
        for wave in waves:
            for start in range(0, len(wave), size):
                yield wave[start : start + size]

    def _encode_rows(self, rows: Sequence[OutboxRow]) -> list[tuple[OutboxRow, Packet]]:
        """Encode the rows that can be sent now; blocked and unencodable rows get their outcome instead."""
        packets = []
        for row in rows:
            if self._defer_if_blocked(row):
                continue
            try:
                packets.append((row, self._settings.envelope.encode(message_of(row), row.destination)))
            except Exception as error:
                self._record_failure(row, error)
        return packets

    async def _publish(self, queue: str, packets: Sequence[tuple[OutboxRow, Packet]]) -> None:
        try:
            async with asyncio.timeout(self._seconds_left):
                results = await self._publisher.publish(queue, [packet for _, packet in packets])
        except (BrokerUnavailable, ConfigurationError, TimeoutError):
            raise
        except Exception as error:
            if len(packets) == 1:
                self._record_failure(packets[0][0], error)
                return
            # One message makes the whole call fail: send each by itself, so that only that one is refused.
            for row, packet in packets:
                if self._seconds_left <= 0:
                    return
                if not self._defer_if_blocked(row):
                    await self._publish(queue, [(row, packet)])
            return
        for (row, _), refusal in zip(packets, results, strict=True):
            if refusal is None:
                self.outcomes[row.seq] = RowOutcome(row.seq, "published")
            elif not self._defer_if_blocked(row):
                self._record_failure(row, refusal)

    # -- outcomes

    def _line(self, row: OutboxRow) -> OrderingLine | None:
        if not self._settings.ordered or row.ordering_key is None:
            return None
        return row.destination, row.ordering_key

    def _defer_if_blocked(self, row: OutboxRow) -> bool:
        """Let ``row`` wait, uncounted, as long as the failed row before it in its line; False: there is none."""
        line = self._line(row)
        blocker = self._blocked_lines.get(line) if line is not None else None
        if blocker is None:
            return False
        wait_us = blocker.wait_us if blocker.state == "waiting" else BLOCKED_ROW_RECHECK_US
        self.outcomes[row.seq] = RowOutcome(row.seq, "waiting", wait_us=wait_us, refund=True)
        return True

    def _record_failure(self, row: OutboxRow, error: Exception) -> None:
        """Park ``row`` or let it wait for its next attempt, and block its line: only its own key is held up (F46)."""
        delay = self._settings.retry.delay_after(error, row.attempts)
        if delay is None:
            outcome = RowOutcome(row.seq, "parked", error=_describe(error))
        else:
            outcome = RowOutcome(row.seq, "waiting", wait_us=round(delay * 1e6), error=_describe(error))
        self.outcomes[row.seq] = outcome
        self.failures.append((row, error))
        line = self._line(row)
        if line is not None:
            self._blocked_lines[line] = outcome

    def _refuse_queue(self, queue: str, rows: Sequence[OutboxRow], error: ConfigurationError) -> None:
        """Let ``queue`` wait, however often: its worker may not have declared it yet, or an operator has to act."""
        before = self._refused_queues.get(queue)
        times = 1 if before is None else before.times + 1
        delay = min(FIRST_REFUSED_QUEUE_DELAY_S * 2.0 ** min(times - 1, _MAX_DOUBLINGS), MAX_REFUSED_QUEUE_DELAY_S)
        self._refused_queues[queue] = RefusedQueue(times, self._time() + delay, error)
        self._defer_rows(rows, delay, error)
        self.failures.append((rows[0], error))

    def _defer_if_refused(self, queue: str, rows: Sequence[OutboxRow]) -> bool:
        """Let ``rows``, which are new, wait with those that ``queue`` was refused for; False: it is time to try it."""
        refused = self._refused_queues.get(queue)
        if refused is None or (delay := refused.until - self._time()) <= 0:
            return False
        self._defer_rows(rows, delay, refused.error)
        return True

    def _defer_rows(self, rows: Sequence[OutboxRow], delay: float, error: Exception) -> None:
        """Let ``rows`` wait, uncounted."""
        wait_us = round(delay * 1e6)
        for row in rows:
            if row.seq not in self.outcomes:
                self.outcomes[row.seq] = RowOutcome(
                    row.seq, "waiting", wait_us=wait_us, error=_describe(error), refund=True
                )


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {show(error, 500)}"


def _split_by_line(rows: Sequence[OutboxRow]) -> list[Sequence[OutboxRow]]:
    """Split ``rows`` into waves: the first row of every line, then the second of every line, and so on."""
    waves: list[list[OutboxRow]] = [[]]
    next_wave: dict[str, int] = {}
    for row in rows:
        wave = 0
        if row.ordering_key is not None:
            wave = next_wave.get(row.ordering_key, 0)
            next_wave[row.ordering_key] = wave + 1
            if wave == len(waves):
                waves.append([])
        waves[wave].append(row)
    return list(waves)
