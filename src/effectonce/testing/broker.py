"""A broker for unit tests: deliver a message to a worker and see how it was settled. No test has to sleep.

broker = TestBroker()
worker = eo.Worker(broker, store=memory_store)

@worker.handler("orders")
def charge(message: eo.Message[Order]) -> None: ...

assert broker.deliver(worker, "orders", message)[0].how == "acked"
broker.redeliver(worker)                 # as after a lost ack
broker.advance(worker, "1m")             # delivers what is due by then: retries, and what was published with a delay
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from msgspec import Struct

from effectonce.backends.memory.broker import MemoryBrokerBackend
from effectonce.broker import Broker
from effectonce.contracts import Delivery, Packet
from effectonce.core.shared_loop import shared_loop
from effectonce.errors import ConfigurationError
from effectonce.message import Message
from effectonce.values.durations import Duration, micros
from effectonce.worker.worker import Worker

from .clock import ManualClock
from .wrapper import Wrapper


class SettledDelivery(Struct, frozen=True, kw_only=True):
    """How a worker settled one delivery."""

    queue: str
    id: str  # the message's
    how: Literal["acked", "delayed", "dead"]
    attempt: int
    after: float = 0.0  # for "delayed": by how many seconds
    headers: Mapping[str, str] = {}  # for "dead": the dead letter's headers, with the reason


class TestBroker(Broker):
    """A broker in memory whose time is moved by hand, and whose deliveries a test makes one by one.

    `deliver`, `redeliver` and `advance` let the worker serve until their messages are settled, and return the
    settlements; `settled` returns all so far. Inside a running event loop: `adeliver`, `aredeliver`, `aadvance`.
    """

    __test__ = False  # its name begins with Test, and it is not a test

    def __init__(
        self,
        *,
        clock: ManualClock | None = None,
        ack_window: Duration = "30s",
        timeout: Duration = "10s",
        **options: Any,
    ) -> None:
        self.clock = ManualClock() if clock is None else clock
        self._timeout_s = micros(timeout, "timeout") / 1e6
        window = micros(ack_window, "ack_window") / 1e6
        self._recorder = _RecordingBackend(MemoryBrokerBackend(clock=self.clock, ack_window=window))
        self._sent: list[tuple[str, Message[Any]]] = []
        super().__init__(self._recorder, **options)

    def deliver(self, worker: Worker, queue: str, *messages: Message[Any]) -> list[SettledDelivery]:
        """Deliver ``messages``, and return how each was settled: "delayed" or "dead" if its handler fails."""
        return shared_loop.run(self.adeliver(worker, queue, *messages), _IN_EVENT_LOOP)

    def redeliver(self, worker: Worker, *messages: Message[Any]) -> list[SettledDelivery]:
        """Deliver ``messages`` once more, as if their acks had been lost; without any, all that were delivered."""
        return shared_loop.run(self.aredeliver(worker, *messages), _IN_EVENT_LOOP)

    def advance(self, worker: Worker, by: Duration) -> list[SettledDelivery]:
        """Advance the clock, and deliver what is due by then: retries, and messages published with a delay."""
        return shared_loop.run(self.aadvance(worker, by), _IN_EVENT_LOOP)

    def settled_deliveries(self, queue: str | None = None) -> list[SettledDelivery]:
        """Return how workers settled every delivery so far, in order."""
        return [settled for settled in self._recorder.settled if queue is None or settled.queue == queue]

    async def adeliver(self, worker: Worker, queue: str, *messages: Message[Any]) -> list[SettledDelivery]:
        """`deliver`, in a running event loop."""
        self._sent += [(queue, message) for message in messages]
        return await self._serve(worker, [(queue, message) for message in messages])

    async def aredeliver(self, worker: Worker, *messages: Message[Any]) -> list[SettledDelivery]:
        """`redeliver`, in a running event loop."""
        ids = {message.id for message in messages}
        delivered = {message.id: (queue, message) for queue, message in self._sent if queue in worker.queues}
        if unknown := ids - delivered.keys():
            raise ConfigurationError(
                f"these messages were never delivered, so they cannot be redelivered: {', '.join(sorted(unknown))}"
            )
        return await self._serve(worker, [sent for id, sent in delivered.items() if id in ids or not ids])

    async def aadvance(self, worker: Worker, by: Duration) -> list[SettledDelivery]:
        """`advance`, in a running event loop."""
        self.clock.advance(by)
        return await self._serve(worker, [])

    async def _serve(self, worker: Worker, messages: Sequence[tuple[str, Message[Any]]]) -> list[SettledDelivery]:
        for queue in {queue for queue, _ in messages}:
            if queue not in worker.queues:
                raise ConfigurationError(f"{worker!r} has no handler for queue {queue!r}")
            await self._recorder.declare(queue, group=worker.name)
        for queue, message in messages:
            await self.apublish(queue, message)
        awaited = Counter((queue, message.id) for queue, message in messages)
        awaited += self._recorder.count_due(worker.name, worker.queues, self.clock.now())
        if not awaited:
            return []
        before = len(self._recorder.settled)
        serving = asyncio.ensure_future(worker.serve())
        all_settled = asyncio.ensure_future(self._recorder.wait_until_settled(worker.name, awaited))
        try:
            await asyncio.wait([serving, all_settled], timeout=self._timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if not serving.done() and not all_settled.done():
                unsettled = ", ".join(id for _, id in self._recorder.awaited)
                raise TimeoutError(
                    f"not settled after {self._timeout_s:g} s: {unsettled}; does its handler end? (timeout=)"
                )
        finally:
            all_settled.cancel()
            worker.stop()
            await serving
        return self._recorder.settled[before:]


_IN_EVENT_LOOP: Final = "an event loop is running: await broker.adeliver(…), aredeliver(…) or aadvance(…) instead"


class _NackedDelivery(NamedTuple):
    group: str
    queue: str
    id: str  # the message's
    due_at: int  # µs, on the broker's clock


class _RecordingBackend(Wrapper):
    """A broker that records how every delivery was settled."""

    def __init__(self, inner: MemoryBrokerBackend) -> None:
        super().__init__(inner)
        self.settled: list[SettledDelivery] = []
        self.awaited: Counter[tuple[str, str]] = Counter()
        self._group = ""
        self._all_settled = asyncio.Event()
        self._nacked: dict[object, _NackedDelivery] = {}  # by group, queue and number of the delivery
        #: By queue and id: when a message that was published with a delay is due, and which groups have settled it.
        self._delayed: dict[tuple[str, str], tuple[int, set[str]]] = {}

    def publisher(self) -> Any:
        return _RecordingPublisher(self, self._inner.publisher())

    def consumer(self, queue: str, *, group: str, prefetch: int) -> Any:
        return _RecordingConsumer(self, self._inner.consumer(queue, group=group, prefetch=prefetch), group)

    def count_due(self, group: str, queues: Collection[str], now: int) -> Counter[tuple[str, str]]:
        """Count the messages in ``queues`` that are due for delivery to ``group``, by (queue, id)."""
        due = Counter(
            (nacked.queue, nacked.id)
            for nacked in self._nacked.values()
            if nacked.group == group and nacked.due_at <= now
        )
        due.update(
            place
            for place, (due_at, settled_by) in self._delayed.items()
            if place[0] in queues and due_at <= now and group not in settled_by
        )
        return due

    def record_delay(self, queue: str, packet: Packet) -> None:
        due_at = self._inner.clock.now() + round(packet.delay_s * 1e6)
        self._delayed[queue, packet.id] = due_at, set()

    async def wait_until_settled(self, group: str, awaited: Counter[tuple[str, str]]) -> None:
        """Wait until ``group`` has settled each of the ``awaited`` (queue, id) as often as it is counted."""
        self._group, self.awaited, self._all_settled = group, awaited, asyncio.Event()
        await self._all_settled.wait()

    def record(self, group: str, delivery: Delivery, how: Any, after: float = 0.0, **details: Any) -> None:
        id, place = delivery.packet.id, (group, delivery.queue, delivery.handle.key)
        self._nacked.pop(place, None)
        if (delivery.queue, id) in self._delayed:
            self._delayed[delivery.queue, id][1].add(group)
        if how == "delayed":
            due_at = self._inner.clock.now() + round(after * 1e6)
            self._nacked[place] = _NackedDelivery(group, delivery.queue, id, due_at)
        settled = SettledDelivery(
            queue=delivery.queue, id=id, how=how, attempt=delivery.attempt, after=after, **details
        )
        self.settled.append(settled)
        if group == self._group:
            self.awaited -= Counter([(delivery.queue, id)])  # a Counter drops what falls to zero
            if not self.awaited:
                self._all_settled.set()


class _RecordingPublisher(Wrapper):
    """Reports every delayed message to the `_RecordingBackend`."""

    def __init__(self, recorder: _RecordingBackend, inner: Any) -> None:
        super().__init__(inner)
        self._recorder = recorder

    async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
        for packet in packets:
            if packet.delay_s:
                self._recorder.record_delay(queue, packet)
        outcomes: Sequence[Exception | None] = await self._inner.publish(queue, packets)
        return outcomes


class _RecordingConsumer(Wrapper):
    """Reports every settlement to the `_RecordingBackend`."""

    def __init__(self, recorder: _RecordingBackend, inner: Any, group: str) -> None:
        super().__init__(inner)
        self._recorder = recorder
        self._group = group

    async def ack(self, deliveries: Sequence[Delivery]) -> Sequence[bool]:
        answers: Sequence[bool] = await self._inner.ack(deliveries)
        self._record(deliveries, answers, "acked")
        return answers

    async def nack(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> Sequence[bool]:
        answers: Sequence[bool] = await self._inner.nack(deliveries, delay)
        self._record(deliveries, answers, "delayed", after=delay)
        return answers

    async def dead_letter(self, delivery: Delivery, headers: Mapping[str, str]) -> bool:
        answer: bool = await self._inner.dead_letter(delivery, headers)
        self._record([delivery], [answer], "dead", headers=headers)
        return answer

    def _record(self, deliveries: Sequence[Delivery], answers: Sequence[bool], how: str, **details: Any) -> None:
        for delivery, applied in zip(deliveries, answers, strict=True):
            if applied:
                self._recorder.record(self._group, delivery, how, **details)
