"""How often a message was tried, where the broker counts its deliveries and where it does not."""

from __future__ import annotations

from typing import Any

import pytest

import effectonce as eo
from effectonce.contracts import Delivery, Packet
from effectonce.worker import attempt_counts
from effectonce.worker.attempt_counts import AttemptCounts
from effectonce.worker.jobs import Job

ROUTE: Any = object()


def job(id: str, attempt: int = 1, untried: int = 0) -> Job:
    delivery = Delivery(packet=Packet(body=b"", id=id), queue="orders", attempt=attempt)
    return Job(delivery, ROUTE, eo.Message(data=None, id=id or "m"), id, b"", id, untried=untried)


def attempt_of(counts: AttemptCounts, id: str) -> int:
    delivery = job(id, attempt=7).delivery
    counts.set_attempt(delivery)
    return delivery.attempt


def test_where_the_broker_counts_its_count_stays() -> None:
    counts = AttemptCounts(broker_counts=True)
    counts.add_attempt(job("m1", attempt=3))
    assert attempt_of(counts, "m1") == 7


def test_where_the_broker_does_not_count_an_attempt_follows_the_last_one_here() -> None:
    counts = AttemptCounts(broker_counts=False)
    assert attempt_of(counts, "m1") == 1
    counts.add_attempt(job("m1", attempt=1))
    assert (attempt_of(counts, "m1"), attempt_of(counts, "m2")) == (2, 1)


def test_a_delivery_that_was_given_back_untried_is_counted_by_the_broker_and_here() -> None:
    counts = AttemptCounts(broker_counts=True)
    assert counts.count_untried(job("m1").delivery) == 0
    counts.add_untried(job("m1", untried=2))
    assert (counts.count_untried(job("m1").delivery), counts.count_untried(job("m2").delivery)) == (3, 0)


def test_a_delivery_that_was_given_back_untried_is_no_attempt_where_the_broker_does_not_count() -> None:
    counts = AttemptCounts(broker_counts=False)
    counts.add_untried(job("m1"))
    assert (counts.count_untried(job("m1").delivery), attempt_of(counts, "m1")) == (0, 1)


@pytest.mark.parametrize("broker_counts", [True, False])
def test_a_message_that_is_settled_is_counted_anew(broker_counts: bool) -> None:
    counts = AttemptCounts(broker_counts=broker_counts)
    counts.add_attempt(job("m1"))
    counts.add_untried(job("m1"))
    counts.forget(job("m1"))
    assert (counts.count_untried(job("m1").delivery), attempt_of(counts, "m1")) == (0, 7 if broker_counts else 1)


def test_messages_without_an_id_do_not_share_a_count() -> None:
    counts = AttemptCounts(broker_counts=False)
    counts.add_attempt(job(""))
    assert attempt_of(counts, "") == 1


def test_the_oldest_count_is_forgotten_where_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_counts, "MAX_MESSAGES", 2)
    counts = AttemptCounts(broker_counts=False)
    for id in ("m1", "m2", "m3"):
        counts.add_attempt(job(id))
    assert [attempt_of(counts, id) for id in ("m1", "m2", "m3")] == [1, 2, 2]


@pytest.mark.parametrize("broker_counts", [True, False])
def test_a_duplicate_that_is_delayed_counts_how_often(broker_counts: bool) -> None:
    counts = AttemptCounts(broker_counts=broker_counts)
    assert [counts.add_delayed(job("m1")) for _ in range(3)] == [1, 2, 3]
    assert counts.add_delayed(job("m1", attempt=7)) == 7, "it was delayed in other processes, too"
    counts.forget(job("m1"))
    assert counts.add_delayed(job("m1")) == 1
