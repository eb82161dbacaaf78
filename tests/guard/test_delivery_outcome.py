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
