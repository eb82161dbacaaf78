"""Sending one lease of outbox rows, in their order, and what became of each. No database here: only the publisher."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct, field

from effectonce.contracts import BrokerCapabilities, Packet, Publisher
from effectonce.contracts.outbox import LOOK_AGAIN, Outgoing, Verdict
from effectonce.core.retry import Retry
from effectonce.errors import BrokerUnavailable, ConfigurationError, show

Line = tuple[str, str]


class Terms(Struct, kw_only=True):
    """How rows are sent."""

    encode: Callable[[Outgoing], Packet]
    retry: Retry
    ordered: bool
    capabilities: BrokerCapabilities
    #: Queues that did not answer when they were last sent to: the others go first.
    mute: set[str]


class Sending(Struct):
    """One lease on its way. ``verdicts`` grow as the broker answers; `rest` are the rows without one."""

    rows: Sequence[Outgoing]
    verdicts: dict[int, Verdict] = field(default_factory=dict)
    failures: list[tuple[Outgoing, Exception]] = field(default_factory=list)
    #: The broker was away: what has no verdict was perhaps sent, and perhaps not.
    outage: BrokerUnavailable | None = None
    #: It had not answered when there was no more time.
    late: bool = False
    #: Of each line that has stopped, the verdict on the row that stopped it.
    stopped: dict[Line, Verdict] = field(default_factory=dict)

    @property
    def rest(self) -> list[Outgoing]:
        return [row for row in self.rows if row.seq not in self.verdicts]

    def release(self) -> list[Verdict]:
        """All verdicts; rows without one go back as if they had never been leased."""
        for row in self.rest:
            self.verdicts[row.seq] = Verdict(row.seq, "pending", refund=True)
        return list(self.verdicts.values())


async def send(sending: Sending, publisher: Publisher, terms: Terms, until: Callable[[], float]) -> None:
    """Publish the rows of ``sending``, as far as there is time: ``until()`` is in seconds of the loop's clock, and is
    asked again before each step. Never raises but for what is a defect, or a cancellation."""
    work = _Work(sending, publisher, terms, until)
    queues: dict[str, list[Outgoing]] = {}
    for row in sending.rows:
        queues.setdefault(row.destination, []).append(row)
    silent = 0
    for queue in sorted(queues, key=terms.mute.__contains__):
        if work.left <= 0 or silent == 2:  # two queues: it is the broker that is away
            return
        if await work.queue(queue, queues[queue]):
            terms.mute.discard(queue)
        else:
            terms.mute.add(queue)
            silent += 1


class _Work:
    def __init__(self, sending: Sending, publisher: Publisher, terms: Terms, until: Callable[[], float]) -> None:
        self._sending = sending
        self._publisher = publisher
        self._terms = terms
        self._until = until

    @property
    def left(self) -> float:
        """Seconds in which rows may still be sent."""
        return self._until() - asyncio.get_running_loop().time()

    async def queue(self, queue: str, rows: Sequence[Outgoing]) -> bool:
        """Send ``rows``, in as few steps as their order allows. False: the broker did not answer."""
        for step in self._steps(rows):
            if self.left <= 0:
                return True
            packets = self._packets(step)
            try:
                if packets:
                    await self._publish(queue, packets)
            except ConfigurationError as error:
                # Not the fault of any row, and not of other queues: none of this one's is counted, all wait.
                self._refused(rows, error)
                return True
            except BrokerUnavailable as error:
                self._sending.outage = error
                return False
            except TimeoutError:
                self._sending.outage = BrokerUnavailable("the broker did not confirm before the lease was over")
                self._sending.late = True
                return False
        return True

    def _steps(self, rows: Sequence[Outgoing]) -> Iterator[Sequence[Outgoing]]:
        """What may be sent at once: where order matters and the broker does not see to it, one row of each line."""
        size = self._terms.capabilities.batch
        waves: list[Sequence[Outgoing]] = [rows]
        if self._terms.ordered and not self._terms.capabilities.ordered_publish:
            waves = _waves(rows)
        for wave in waves:
            for start in range(0, len(wave), size):
                yield wave[start : start + size]

    def _packets(self, rows: Sequence[Outgoing]) -> list[tuple[Outgoing, Packet]]:
        """Those of the rows that can be sent now; the others get their verdicts."""
        packets = []
        for row in rows:
            if self._holds(row):
                continue
            try:
                packets.append((row, self._terms.encode(row)))
            except Exception as error:
                self._failed(row, error)
        return packets

    async def _publish(self, queue: str, packets: Sequence[tuple[Outgoing, Packet]]) -> None:
        try:
            async with asyncio.timeout(self.left):
                outcomes = await self._publisher.publish(queue, [packet for _, packet in packets])
        except (BrokerUnavailable, ConfigurationError, TimeoutError):
            raise
        except Exception as error:
            if len(packets) == 1:
                self._failed(packets[0][0], error)
                return
            # One of them upsets the publisher: each by itself, so that it harms itself only.
            for row, packet in packets:
                if self.left <= 0:
                    return
                if not self._holds(row):
                    await self._publish(queue, [(row, packet)])
            return
        for (row, _), outcome in zip(packets, outcomes, strict=True):
            if outcome is None:
                self._sending.verdicts[row.seq] = Verdict(row.seq, "published")
            elif not self._holds(row):
                self._failed(row, outcome)

    # -- verdicts

    def _line(self, row: Outgoing) -> Line | None:
        return (row.destination, row.ordering_key) if self._terms.ordered and row.ordering_key is not None else None

    def _holds(self, row: Outgoing) -> bool:
        """Whether its line has stopped: it then waits as long as the row that stopped it, and was not tried."""
        line = self._line(row)
        blocker = self._sending.stopped.get(line) if line is not None else None
        if blocker is None:
            return False
        span = blocker.span if blocker.state == "waiting" else LOOK_AGAIN
        self._sending.verdicts[row.seq] = Verdict(row.seq, "waiting", span=span, refund=True)
        return True

    def _failed(self, row: Outgoing, error: Exception) -> None:
        delay = self._terms.retry.after(error, row.attempts)
        said = f"{type(error).__name__}: {show(error, 500)}"
        if delay is None:
            verdict = Verdict(row.seq, "parked", error=said)
        else:
            verdict = Verdict(row.seq, "waiting", span=round(delay * 1e6), error=said)
        self._sending.verdicts[row.seq] = verdict
        self._sending.failures.append((row, error))
        line = self._line(row)
        if line is not None:
            self._sending.stopped[line] = verdict

    def _refused(self, rows: Sequence[Outgoing], error: Exception) -> None:
        span = round(self._terms.retry.cap * 1e6)
        for row in rows:
            if row.seq not in self._sending.verdicts:
                said = f"{type(error).__name__}: {show(error, 500)}"
                self._sending.verdicts[row.seq] = Verdict(row.seq, "waiting", span=span, error=said, refund=True)
        self._sending.failures.append((rows[0], error))


def _waves(rows: Sequence[Outgoing]) -> list[Sequence[Outgoing]]:
    """The first rows of all lines, then the second ones, and so on."""
    waves: list[list[Outgoing]] = [[]]
    places: dict[str, int] = {}
    for row in rows:
        place = 0
        if row.ordering_key is not None:
            place = places.get(row.ordering_key, 0)
            places[row.ordering_key] = place + 1
            if place == len(waves):
                waves.append([])
        waves[place].append(row)
    return list(waves)
