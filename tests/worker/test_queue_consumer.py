"""`QueueConsumer` between broker and executor, with stand-ins for both: what it receives, and how it settles that."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

import effectonce as eo
from effectonce.contracts import BrokerCapabilities, Delivery, Packet
from effectonce.core.backoff import Backoff
from effectonce.core.events import Events
from effectonce.errors import BrokerUnavailable, ConfigurationError, InProgress, Undecodable
from effectonce.worker.jobs import Job
from effectonce.worker.message_order import DELAY_STEP_S
from effectonce.worker.message_reader import UnknownType
from effectonce.worker.queue_consumer import MIN_DUPLICATE_DELAY_S, QueueConsumer
from tests.harness.waiting import auntil

ROUTE: Any = object()


def delivery(id: str, attempt: int = 1) -> Delivery:
    return Delivery(packet=Packet(body=b"", id=id), queue="q", attempt=attempt)


class Broker:
    """A consumer of a broker: each receive ends as listed, the last one never. ``lost``: the ids it no longer owns."""

    def __init__(self) -> None:
        self.receipts: list[Sequence[Delivery] | Exception] = []
        self.limits: list[int] = []
        self.lost: set[str] = set()
        self.extended: list[float] = []
        self.is_away = False

    async def receive(self, limit: int, wait: float) -> Sequence[Delivery]:
        self.limits.append(limit)
        if not self.receipts:
            await asyncio.Future()
        receipt = self.receipts.pop(0)
        if isinstance(receipt, Exception):
            raise receipt
        return receipt

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> list[bool]:
        if self.is_away:
            raise BrokerUnavailable("it is away")
        self.extended.append(seconds)
        return [delivery.packet.id not in self.lost for delivery in deliveries]


class Reader:
    """Reads each delivery as a job whose key and lane are its id up to a colon; or raises what is listed for it."""

    def __init__(self) -> None:
        self.errors: dict[str, Exception] = {}

    def read(self, delivery: Delivery) -> Job:
        id = delivery.packet.id
        if id in self.errors:
            raise self.errors[id]
        lane, colon, _ = id.partition(":")
        return Job(delivery, ROUTE, eo.Message(data=None, id=id, ordering_key=lane if colon else None), id, b"", lane)


class Executor:
    """Notes the jobs that may start."""

    pools = ()

    def __init__(self) -> None:
        self.enqueued: list[str] = []
        self.starts = 0
        self.suspects_left: list[Job] = []

    def enqueue(self, job: Job) -> None:
        self.enqueued.append(job.message.id)

    def start(self) -> None:
        self.starts += 1

    def on_suspect_left(self, job: Job) -> None:
        self.suspects_left.append(job)


class Bench:
    def __init__(self, *, prefetch: int = 8, unknown: Any = "dead", **capabilities: Any) -> None:
        self.broker, self.reader, self.executor = Broker(), Reader(), Executor()
        self.failures: list[BaseException] = []
        known: dict[str, Any] = {"name": "fake", "counts_attempts": True, "batch": 100}
        self.consumer = QueueConsumer(
            "q", "worker", self.broker, self.reader, lambda consumer: self.executor,  # type: ignore[arg-type, return-value]
            prefetch=prefetch, capabilities=BrokerCapabilities(**known | capabilities), unknown=unknown, private=False,
            fail=self.failures.append, events=Events(), tracer=None,
        )  # fmt: skip

    def accept(self, *deliveries: Delivery) -> list[Job]:
        self.consumer._accept(deliveries)
        return list(self.consumer.in_flight)

    @property
    def redelivered(self) -> dict[float, list[str]]:
        waiting = self.consumer.settler._redeliveries
        return {delay: [each.packet.id for each in deliveries] for delay, deliveries in waiting.items()}

    @property
    def acked(self) -> list[str]:
        return [each.packet.id for each in self.consumer.settler._acks]

    @property
    def dead(self) -> list[tuple[str, str]]:
        return [(each.packet.id, cause.why) for each, cause in self.consumer.settler._dead]

    async def receive(self, *receipts: Sequence[Delivery] | Exception) -> None:
        """Receive until all of ``receipts`` are taken and another one is asked for, or there is no room."""
        self.broker.receipts = list(receipts)
        task = asyncio.create_task(self.consumer._receive())
        for _ in range(30):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])


# -- receiving


async def test_as_much_is_received_as_there_is_room_for() -> None:
    bench = Bench(prefetch=8)
    await bench.receive([delivery("a"), delivery("b"), delivery("c")])
    assert bench.broker.limits == [8, 5]
    assert bench.executor.enqueued == ["a", "b", "c"]
    bench.consumer.add_finishing(next(iter(bench.consumer.in_flight)))
    await bench.receive()
    assert bench.broker.limits[2:] == [6], "another one takes the place of what has run and is not settled"


async def test_no_more_is_received_at_once_than_the_broker_gives() -> None:
    bench = Bench(prefetch=8, batch=2)
    await bench.receive([delivery("a"), delivery("b")])
    assert bench.broker.limits == [2, 2]


@pytest.mark.parametrize(
    ("prefetch", "batch", "in_flight", "limits"),
    [(8, 100, 6, [2]), (8, 100, 7, []), (8, 1, 7, [1]), (3, 100, 2, [1]), (3, 100, 3, [])],
)
async def test_less_than_a_quarter_of_the_prefetch_is_not_worth_a_fetch(
    prefetch: int, batch: int, in_flight: int, limits: list[int]
) -> None:
    bench = Bench(prefetch=prefetch, batch=batch)
    bench.accept(*(delivery(str(number)) for number in range(in_flight)))
    await bench.receive()
    assert bench.broker.limits == limits


async def test_receiving_goes_on_when_there_is_room_again() -> None:
    bench = Bench(prefetch=1)
    (job,) = bench.accept(delivery("a"))
    receiving = asyncio.create_task(bench.consumer._receive())
    await asyncio.sleep(0)
    assert bench.broker.limits == []
    bench.consumer.ack([job])
    await auntil(lambda: bench.broker.limits == [1])
    receiving.cancel()


async def test_a_broker_that_is_away_is_asked_again_after_growing_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[int] = []

    def record_failure(self: Backoff, error: BaseException) -> float:
        failures.append(self.failures)
        self.failures += 1
        return 0.0

    monkeypatch.setattr(Backoff, "record_failure", record_failure)
    bench, away = Bench(), BrokerUnavailable("it is away")
    await bench.receive(away, away, [], away)
    assert failures == [0, 1, 0]
    assert len(bench.broker.limits) == 5


async def test_acks_wait_for_a_fetch_only_while_one_is_under_way() -> None:
    bench = Bench()
    receiving = asyncio.create_task(bench.consumer._receive())
    await asyncio.sleep(0)
    assert bench.consumer.settler.fetching
    receiving.cancel()
    await asyncio.wait([receiving])
    assert not bench.consumer.settler.fetching


async def test_a_defect_in_a_task_ends_the_worker_and_a_cancelled_task_does_not() -> None:
    bench = Bench()

    async def fail() -> None:
        raise ZeroDivisionError("a defect")

    await asyncio.wait([bench.consumer._spawn("defect", fail())])
    task = bench.consumer._spawn("wait", asyncio.Event().wait())  # type: ignore[arg-type]
    task.cancel()
    await asyncio.wait([task])
    await asyncio.sleep(0)
    assert [str(error) for error in bench.failures] == ["a defect"]


# -- what was delivered before


async def test_a_message_that_the_broker_counts_was_delivered_before_from_its_second_delivery_on() -> None:
    bench = Bench()
    once, twice = bench.accept(delivery("a"), delivery("b", attempt=2))
    assert (once.redelivered, twice.redelivered) == (False, True)


async def test_where_the_broker_does_not_count_the_first_messages_may_come_from_a_process_that_died() -> None:
    bench = Bench(prefetch=2, counts_attempts=False)
    jobs = [job for id in "abcd" for job in bench.accept(delivery(id, attempt=0))[-1:]]
    assert [job.redelivered for job in jobs] == [True, True, True, False]
    assert [job.delivery.attempt for job in jobs] == [1, 1, 1, 1]


async def test_a_message_that_went_back_untried_was_tried_once_less() -> None:
    bench = Bench()
    (job,) = bench.accept(delivery("a"))
    bench.consumer.redeliver(job, 1.0)
    (again,) = bench.accept(delivery("a", attempt=2))
    assert again.untried == 1
    bench.consumer.redeliver(again, 1.0, tried=True)
    (third,) = bench.accept(delivery("a", attempt=3))
    assert third.untried == 1
    bench.consumer.ack([third])
    (anew,) = bench.accept(delivery("a", attempt=2))
    assert anew.untried == 0


async def test_another_message_with_the_id_of_one_that_went_back_was_never_tried() -> None:
    bench = Bench()
    (job,) = bench.accept(delivery("a"))
    bench.consumer.redeliver(job, 1.0)
    (other,) = bench.accept(delivery("a", attempt=1))
    assert other.untried == 0


async def test_a_message_behind_one_that_went_back_goes_back_too_and_holds_up_no_other_key() -> None:
    bench = Bench()
    (first,) = bench.accept(delivery("k:1"))
    bench.consumer.redeliver(first, 5.0)
    (other,) = bench.accept(delivery("k:2"), delivery("other:1"))
    assert other.message.id == "other:1"
    assert bench.executor.enqueued == ["k:1", "other:1"]
    assert [id for ids in bench.redelivered.values() for id in ids] == ["k:1", "k:2"]
    assert min(bench.redelivered) == 5.0, "it comes after the one before it"
    bench.accept(delivery("k:1", attempt=2))
    (_, _, again) = bench.accept(delivery("k:2", attempt=2))
    assert again.untried == 1


async def test_the_executor_starts_what_came_with_one_receipt_together() -> None:
    bench = Bench()
    bench.accept(delivery("a"), delivery("b"))
    assert bench.executor.starts == 1


# -- what cannot be read


@pytest.mark.parametrize(
    ("unknown", "error", "acked", "dead", "redelivered", "failures"),
    [
        ("dead", UnknownType("no handler"), [], [("a", "unknown-type")], {}, 0),
        ("delete", UnknownType("no handler"), ["a"], [], {}, 0),
        ("fail", UnknownType("no handler"), [], [], {0.0: ["a"]}, 1),
        ("delete", Undecodable("not JSON"), [], [("a", "undecodable")], {}, 0),
        ("delete", ZeroDivisionError("in the key"), [], [("a", "undecodable")], {}, 0),
        ("delete", ConfigurationError("a typo"), [], [], {0.0: ["a"]}, 1),
    ],
)
async def test_what_cannot_be_read_is_settled_and_does_not_stop_those_behind_it(
    unknown: Any,
    error: Exception,
    acked: list[str],
    dead: list[tuple[str, str]],
    redelivered: dict[float, list[str]],
    failures: int,
) -> None:
    bench = Bench(unknown=unknown)
    bench.reader.errors["a"] = error
    bench.accept(delivery("a"), delivery("b"))
    assert bench.executor.enqueued == ["b"]
    assert (bench.acked, bench.dead, bench.redelivered) == (acked, dead, redelivered)
    assert bench.failures == [error] * failures


@pytest.mark.parametrize(("attempt", "least_s"), [(0, 0.0), (1, 0.0), (5, 1.0)])
async def test_an_unknown_type_that_is_retried_waits_longer_after_each_delivery(attempt: int, least_s: float) -> None:
    bench = Bench(unknown="retry")
    bench.reader.errors["a"] = UnknownType("no handler")
    bench.accept(delivery("a", attempt=attempt))
    ((delay, ids),) = bench.redelivered.items()
    assert ids == ["a"]
    assert delay > least_s


# -- settling


async def test_of_one_ordering_key_the_next_starts_when_the_one_before_it_has_left() -> None:
    bench = Bench()
    first, second = bench.accept(delivery("k:1"), delivery("k:2"))
    assert bench.executor.enqueued == ["k:1"]
    bench.consumer.ack([first])
    assert bench.executor.enqueued == ["k:1", "k:2"]
    assert list(bench.consumer.in_flight) == [second]
    assert bench.acked == ["k:1"]


async def test_what_goes_back_takes_along_what_waits_behind_it_each_a_step_later() -> None:
    bench = Bench()
    first, *_ = bench.accept(delivery("k:1"), delivery("other"), delivery("k:2"), delivery("k:3"))
    bench.consumer.redeliver(first, 1.004)
    assert bench.redelivered == {1.0: ["k:1"], 1.0 + DELAY_STEP_S: ["k:2"], 1.0 + 2 * DELAY_STEP_S: ["k:3"]}
    assert [job.message.id for job in bench.consumer.in_flight] == ["other"]


async def test_without_a_delay_all_of_a_lane_goes_back_at_once() -> None:
    bench = Bench()
    first, _ = bench.accept(delivery("k:1"), delivery("k:2"))
    bench.consumer.redeliver(first, 0.0)
    assert bench.redelivered == {0.0: ["k:1", "k:2"]}


async def test_what_another_consumer_owns_by_now_is_not_settled() -> None:
    bench = Bench()
    first, second, third = bench.accept(delivery("a"), delivery("b"), delivery("c"))
    for job in (first, second, third):
        job.stale = True
    bench.consumer.ack([first])
    bench.consumer.ack_batched(second)
    bench.consumer.redeliver(third, 1.0)
    assert (bench.acked, bench.redelivered, list(bench.consumer.in_flight)) == ([], {}, [])


async def test_a_duplicate_of_what_runs_elsewhere_waits_a_while_even_if_the_lease_ends_at_once() -> None:
    bench = Bench()
    (job,) = bench.accept(delivery("a"))
    bench.consumer.redeliver_uncounted(job, InProgress("it runs", retry_after=0.0))
    ((delay, ids),) = bench.redelivered.items()
    assert ids == ["a"]
    assert delay >= MIN_DUPLICATE_DELAY_S


async def test_a_suspect_that_has_left_makes_room_for_the_next_one() -> None:
    bench = Bench()
    suspect, other = bench.accept(delivery("a"), delivery("b"))
    suspect.must_run_alone = True
    bench.consumer.ack([other])
    assert bench.executor.suspects_left == []
    bench.consumer.drop(suspect)
    assert bench.executor.suspects_left == [suspect]


async def test_what_has_run_is_no_longer_finishing_once_it_is_settled() -> None:
    bench = Bench()
    (job,) = bench.accept(delivery("a"))
    bench.consumer.add_finishing(job)
    bench.consumer.ack([job])
    assert (bench.consumer.finishing, bench.consumer.in_flight) == (set(), {})


# -- the ack window


async def test_f54_what_could_not_be_extended_is_another_consumers() -> None:
    bench = Bench(ack_window_s=30.0, extends=True)
    kept, lost = bench.accept(delivery("kept"), delivery("lost"))
    bench.broker.lost = {"lost"}
    await bench.consumer.extend()
    assert (kept.stale, lost.stale, bench.broker.extended) == (False, True, [30.0])
    bench.broker.is_away = True
    await bench.consumer.extend()
    assert not kept.stale, "nothing is known about it"
