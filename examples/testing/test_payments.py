from collections.abc import Iterator
from contextlib import suppress
from random import Random

import payments
import pytest
from payments import charge, charged, gateway

import effectonce as eo
from effectonce.testing import ChaosStore, ManualClock, assert_idempotent, override


@pytest.fixture(autouse=True)
def fresh(memory_store: eo.Store) -> Iterator[None]:
    gateway.charges.clear()
    gateway.down = False
    with override(payments.store, memory_store):
        yield


def test_all_of_it_in_one_line() -> None:
    assert_idempotent(charge, "pay_1", 4200, effects=charged, reset=gateway.charges.clear, strict=True)


def test_a_failure_is_retried() -> None:
    gateway.down = True
    with pytest.raises(ConnectionError):
        charge("pay_1", 4200)
    gateway.down = False
    assert charge.call("pay_1", 4200).attempt == 2
    assert charge.call("pay_1", 4200).replayed


def test_another_payment_is_not_a_duplicate() -> None:
    charge("pay_1", 4200)
    charge("pay_2", 4200)
    assert charged() == 2


@pytest.mark.parametrize("seed", range(10))
def test_it_charges_once_while_store_and_gateway_fail_at_random(
    memory_store: eo.Store, manual_clock: ManualClock, seed: int
) -> None:
    dice = Random(seed)
    with override(payments.store, ChaosStore(memory_store, failure_rate=0.3, seed=seed)):
        for _ in range(100):
            gateway.down = dice.random() < 0.2
            with suppress(ConnectionError, eo.Retryable, eo.LeaseLost):
                charge("pay_1", 4200)
            manual_clock.advance("31s")  # an attempt that could not be settled keeps its lease, of 30 seconds
    assert charged() == 1
