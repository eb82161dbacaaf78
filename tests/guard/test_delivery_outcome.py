"""What the broker is answered after an error: the table of `decide_delivery`."""

from __future__ import annotations

import pytest

import effectonce as eo
from effectonce.core.delivery_outcome import Ack, Redeliver, Reject, decide_delivery
from effectonce.core.retry import Retry


def test_done_without_its_result_is_acked() -> None:
    assert decide_delivery(eo.ResultNotStored("done")) == Ack(replayed=True)


@pytest.mark.parametrize("error", [eo.InProgress("first runs", 7.0), eo.StoreUnavailable("down", 7.0)])
def test_what_did_not_run_comes_again_when_its_error_says(error: eo.Retryable) -> None:
    assert decide_delivery(error) == Redeliver(7.0, error)


def test_what_cannot_run_for_long_is_tried_later_and_later() -> None:
    """An outage of the provider or the store, in a task framework: without a `Retry` there is no end."""
    error = eo.OutcomeUnknown("no answer", 3.0)
    delays = [decide_delivery(error, attempt=attempt).after for attempt in range(1, 10)]  # type: ignore[union-attr]
    assert delays == [3.0, 3.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
    assert decide_delivery(eo.StoreUnavailable("down", 120.0), attempt=9).after == 120.0  # type: ignore[union-attr]


def test_a_duplicate_beside_the_first_comes_back_soon_and_then_later_and_later_until_the_lease_ends() -> None:
    """The lease is for a first delivery that died. One that lives has mostly ended in a moment."""
    error = eo.InProgress("first runs", 0.2, lease_left=29.99)
    delays = [decide_delivery(error, attempt=attempt).after for attempt in range(1, 11)]  # type: ignore[union-attr]
    assert delays == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 29.99, 29.99]
    assert decide_delivery(error) == Redeliver(1.0, error), "where the deliveries are not counted"
    assert decide_delivery(eo.InProgress("it dies", 0.2, lease_left=0.5), attempt=9).after == 0.5  # type: ignore[union-attr]


def test_a_duplicate_beside_the_first_is_not_given_up() -> None:
    """It has not failed, however often it came."""
    error = eo.InProgress("first runs", 0.2, lease_left=30.0)
    assert decide_delivery(error, retry=Retry(2), attempt=4) == Redeliver(1.6, error)
    assert decide_delivery(error, retry=Retry(on={eo.InProgress: "dead"}), attempt=1) == Reject(error)


def test_no_message_comes_again_at_once() -> None:
    """A store that is down, or a first delivery that runs, would be asked as fast as the broker can deliver."""
    error = eo.InProgress("first runs", 0.0)
    assert decide_delivery(error) == Redeliver(0.1, error)


@pytest.mark.parametrize("kind", [eo.LeaseLost, eo.SchemaMissing, eo.SchemaMismatch, eo.UnsafeStore, eo.MissingDriver])
def test_an_unknown_outcome_and_a_store_that_is_not_set_up_lose_no_message(kind: type[eo.EffectOnceError]) -> None:
    error = kind("not now")
    assert decide_delivery(error) == Redeliver(1.0, error)
    assert decide_delivery(error, retry=Retry(1), attempt=9) == Redeliver(1.0, error), "however often it was tried"


def test_a_program_that_is_wrong_has_no_answer() -> None:
    with pytest.raises(eo.Reentered):
        decide_delivery(eo.Reentered("the handler called itself"))


@pytest.mark.parametrize("kind", [eo.InDoubt, eo.PayloadMismatch, eo.MissingKey, eo.CorruptRecord, eo.Undecodable])
def test_what_no_redelivery_can_mend_is_rejected(kind: type[eo.EffectOnceError]) -> None:
    error = kind("not ever")
    assert decide_delivery(error) == Reject(error)
    assert decide_delivery(error, retry=Retry(None)) == Reject(error)


def test_an_error_of_the_handler_comes_again_until_its_attempts_end() -> None:
    error = RuntimeError("card reader on fire")
    retry = Retry(2, first="10s", jitter=False)
    assert decide_delivery(error) == Redeliver(1.0, error)
    assert decide_delivery(error, retry=retry, attempt=1) == Redeliver(10.0, error)
    assert decide_delivery(error, retry=retry, attempt=2) == Reject(error)
    assert decide_delivery(error, retry=retry, attempt=1, final=True) == Reject(error)
