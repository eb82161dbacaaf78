"""`Lanes` and `DelayedLanes`: of one ordering key one message runs at a time, and none overtakes another one."""

from __future__ import annotations

from typing import Any

import pytest

import effectonce as eo
from effectonce.contracts import Delivery, Packet
from effectonce.worker import message_order
from effectonce.worker.jobs import Job
from effectonce.worker.message_order import DELAY_STEP_S, OVERDUE_S, DelayedLanes, Lanes

ROUTE: Any = object()
OTHER_ROUTE: Any = object()


def job(id: str, lane: str = "k", *, route: Any = ROUTE, redelivered: bool = False) -> Job:
    delivery = Delivery(packet=Packet(body=b"", id=id), queue="orders")
    return Job(delivery, route, eo.Message(data=None, id=id), id, b"", lane, redelivered=redelivered)


def lane_of(*jobs: Job) -> Lanes:
    """Lanes to which ``jobs`` were added."""
    lanes = Lanes()
    for each in jobs:
        lanes.add(each)
    return lanes


def ids(jobs: list[Job]) -> list[str]:
    return [each.message.id for each in jobs]


# -- of the messages that are received


def test_only_the_first_message_of_a_lane_may_start() -> None:
    lanes = Lanes()
    assert [lanes.add(job("1")), lanes.add(job("2")), lanes.add(job("3", "other"))] == [True, False, True]


def test_the_next_message_may_start_when_the_first_is_settled() -> None:
    second, third = job("2"), job("3")
    lanes = lane_of(job("1"), second, third)
    assert lanes.remove_first("k") is second
    assert lanes.remove_first("k") is third
    assert lanes.remove_first("k") is None


def test_a_lane_whose_messages_are_settled_starts_anew() -> None:
    lanes = lane_of(job("1"))
    lanes.remove_first("k")
    assert lanes.add(job("2"))


def test_the_first_message_stays_when_those_behind_it_are_taken_out() -> None:
    lanes = lane_of(job("1"), job("2"), job("3"))
    assert ids(lanes.remove_waiting("k")) == ["2", "3"]
    assert not lanes.add(job("4"))
    assert lanes.remove_waiting("nobody has it") == []


def test_messages_that_wait_behind_the_first_share_its_transaction() -> None:
    first = job("1")
    lanes = lane_of(first, job("2"), job("3"), job("4"))
    assert ids(lanes.take_batchable(first, 3)) == ["1", "2", "3"]
    following = lanes.remove_first("k")
    assert following is not None
    assert following.message.id == "4"


@pytest.mark.parametrize("second", [job("2", route=OTHER_ROUTE), job("2", redelivered=True)])
def test_a_message_of_another_handler_or_one_that_came_before_ends_the_batch(second: Job) -> None:
    first = job("1")
    lanes = lane_of(first, second, job("3"))
    assert ids(lanes.take_batchable(first, 50)) == ["1"]


def test_messages_that_are_put_back_come_before_those_that_wait() -> None:
    first = job("1")
    lanes = lane_of(first, job("2"), job("3"), job("4"))
    _, *others = lanes.take_batchable(first, 3)
    lanes.put_back(others)
    assert ids(lanes.remove_waiting("k")) == ["2", "3", "4"]


# -- of the messages that were given back


class DelayBench:
    """Delayed lanes on a clock that a test moves."""

    def __init__(self, *, broker_keeps_order: bool = False) -> None:
        self.now = 100.0
        self.round = 1
        self.delayed = DelayedLanes(lambda: self.now, broker_keeps_order=broker_keeps_order)

    def delay(self, delay: float, *ids: str, lane: str = "k") -> None:
        self.delayed.delay(lane, delay, ids, self.round)

    def admit(self, id: str, lane: str = "k") -> float | None:
        return self.delayed.admit(job(id, lane), self.round)

    def finish_round(self) -> None:
        """All that was given back has reached the broker, and the next receipt begins."""
        self.round += 1
        self.delayed.forget_sent(self.round - 1)


def test_a_message_of_a_lane_that_is_not_delayed_is_admitted() -> None:
    bench = DelayBench()
    bench.delay(1.0, "1")
    assert bench.admit("2", lane="other") is None


def test_delayed_messages_are_admitted_in_their_order() -> None:
    bench = DelayBench()
    bench.delay(1.0, "1", "2", "3")
    bench.now += 1.0
    assert bench.admit("2") == pytest.approx(DELAY_STEP_S)
    assert bench.admit("1") is None
    assert bench.admit("3") == pytest.approx(DELAY_STEP_S)
    assert [bench.admit("2"), bench.admit("3")] == [None, None]


def test_the_first_delayed_message_is_admitted_when_the_broker_redelivers_it_too_early() -> None:
    bench = DelayBench()
    bench.delay(1.0, "1", "2")
    assert bench.admit("1") is None


def test_a_new_message_waits_behind_those_that_are_delayed() -> None:
    bench = DelayBench()
    bench.delay(1.0, "1")
    bench.now += 0.4
    assert bench.admit("new") == pytest.approx(0.6 + DELAY_STEP_S)
    assert [bench.admit("1"), bench.admit("new")] == [None, None]


def test_a_lane_is_forgotten_when_its_last_message_is_admitted() -> None:
    bench = DelayBench()
    bench.delay(1.0, "1")
    bench.admit("1")
    assert bench.admit("2") is None


def test_others_are_admitted_once_the_first_message_is_long_overdue() -> None:
    """Another consumer has got it."""
    bench = DelayBench()
    bench.delay(1.0, "1", "2", "3")
    bench.now += 1.0 + OVERDUE_S
    assert bench.admit("3") is not None
    bench.now += 0.001
    assert bench.admit("3") is None


def test_what_is_given_back_again_comes_before_what_was_given_back_earlier() -> None:
    bench = DelayBench()
    bench.delay(1.0, "1", "2", "3")
    bench.now += 1.0
    bench.admit("1")
    bench.delay(1.0, "1")
    bench.now += 1.0
    assert bench.admit("2") == pytest.approx(DELAY_STEP_S)
    assert bench.admit("3") == pytest.approx(2 * DELAY_STEP_S)
    assert [bench.admit("1"), bench.admit("2"), bench.admit("3")] == [None, None, None]


def test_overdue_lanes_make_room_for_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_order, "MIN_LANES_TO_TRIM", 2)
    bench = DelayBench()
    bench.delay(1.0, "1", "2", lane="old")
    bench.delay(60.0, "1", "2", lane="long")
    bench.now += 10.0
    bench.delay(1.0, "1", "2", lane="new")
    assert sorted(bench.delayed._lanes) == ["long", "new"]


def test_an_outage_that_delays_many_lanes_is_not_looked_through_for_each_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(message_order, "MIN_LANES_TO_TRIM", 10)
    bench, looks = DelayBench(), 0

    def is_overdue(*_: object) -> bool:
        nonlocal looks
        looks += 1
        return False

    monkeypatch.setattr(bench.delayed, "_is_overdue", is_overdue)
    for number in range(1000):
        bench.delay(60.0, "1", lane=str(number))
    assert looks < 2000


def test_f75_on_a_broker_that_keeps_order_no_grace_lets_a_message_overtake() -> None:
    bench = DelayBench(broker_keeps_order=True)
    bench.delay(1.0, "1", "2")
    bench.now += 100 * OVERDUE_S
    assert bench.admit("3") is not None, "it was received before the broker had the first two back"


def test_on_a_broker_that_keeps_order_a_lane_is_forgotten_once_all_of_it_went_back() -> None:
    bench = DelayBench(broker_keeps_order=True)
    bench.delay(60.0, "1", "2")
    bench.delay(60.0, "1", lane="other")
    bench.delayed.forget_sent(0)
    assert bench.admit("3") is not None
    bench.finish_round()
    assert (bench.admit("4"), bench.admit("4", lane="other")) == (None, None), "another consumer has settled the others"


def test_a_lane_whose_next_message_goes_back_is_remembered_until_that_has_reached_the_broker() -> None:
    bench = DelayBench(broker_keeps_order=True)
    bench.delay(1.0, "1")
    bench.delay(1.0, "1", lane="other")
    bench.round += 1  # the first round is on its way
    assert bench.admit("2") is not None
    bench.delayed.forget_sent(1)
    assert bench.admit("9", lane="other") is None
    assert bench.admit("3") is not None
