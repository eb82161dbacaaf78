"""A failure that is recorded for good is not tried again: not as a message, a step or a dispatched call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import effectonce as eo
from effectonce.core.delivery_outcome import Reject
from effectonce.core.retry import Retry, is_final
from effectonce.guard.dispatch import dispatcher
from effectonce.providers import Verdict
from tests.worker.bench import Bench, paid, serving, until


class CardDeclined(Exception):
    """The error of the bank's client."""


@pytest.fixture
def store() -> eo.Store:
    return eo.connect("memory://", sweep_every=None)


def declining(store: eo.Store, sends: list[int]) -> Callable[[str], Any]:
    """An intent at a bank that declines each card."""
    intents = eo.Intents(store, scope="billing")
    intents.classify("stripe")(lambda outcome: Verdict.failure("card_declined"))

    @intents.operation("stripe", "charge", returns=str)
    def charge(intent: eo.Intent[int]) -> str:
        sends.append(intent.send_count)
        raise CardDeclined("for good")

    return lambda key: charge(4200, key=key)


def test_a_failure_that_is_recorded_for_good_has_no_second_attempt_unless_on_says_so() -> None:
    failure = eo.PermanentFailure("declined")
    assert Retry(4).delay_after(failure, 1) is None
    assert Retry(None).refuses(eo.SagaFailed("compensated"))
    assert Retry(4, on={eo.PermanentFailure: Retry(3, first=0)}).delay_after(failure, 1) == 0
    assert Retry(4, on={Exception: Retry(3, first=0)}).delay_after(failure, 1) == 0
    assert Retry(4, first=0).delay_after(ValueError(), 1) == 0


def test_the_error_of_a_declined_intent_is_final_when_it_is_new_and_when_it_is_replayed(store: eo.Store) -> None:
    sends: list[int] = []
    charge = declining(store, sends)
    for _ in range(2):
        with pytest.raises((CardDeclined, eo.PermanentFailure)) as raised:
            charge("pay_1")
        assert is_final(raised.value)
        assert Retry(4).refuses(raised.value)
    assert sends == [1]


def test_a_permanent_error_of_a_guard_is_final_when_it_is_new_and_when_it_is_replayed(store: eo.Store) -> None:
    @eo.once(store, scope="charge", key="id", permanent=(CardDeclined,))
    def charge(id: str) -> None:
        raise CardDeclined("for good")

    for _ in range(2):
        with pytest.raises(CardDeclined) as raised:
            charge("pay_1")
        assert Retry(4).refuses(raised.value)


async def test_a_message_whose_card_was_declined_is_one_attempt() -> None:
    bench = Bench()
    worker = bench.worker()
    sends: list[int] = []
    charge = declining(bench.store, sends)
    runs = 0

    @worker.handler("orders", retry=Retry(4, first="1ms"))
    def pay(message: eo.Message[Any]) -> None:
        nonlocal runs
        runs += 1
        charge(message.id)

    async with serving(worker):
        await bench.send("orders", paid())
        await until(lambda: bench.count("dead") == 1)
    (dead,) = await bench.dead(worker, "orders").alist()
    assert (runs, sends, dead.cause.why, dead.cause.attempts) == (1, [1], "permanent-failure", 1)


def test_a_step_whose_card_was_declined_is_one_attempt_and_the_saga_turns_around(store: eo.Store) -> None:
    sends: list[int] = []
    charge = declining(store, sends)
    saga = eo.Saga("order", store, input=dict)
    attempts: list[str] = []

    @saga.step(retry=Retry(4, first="1ms"))
    def pay(order: dict[str, Any]) -> None:
        attempts.append("pay")
        charge(eo.current().key)

    with pytest.raises(eo.SagaFailed, match="for good"):
        saga.run("o-1", {})
    assert (attempts, sends) == (["pay"], [1])


def test_a_dispatched_call_whose_card_was_declined_is_rejected(store: eo.Store) -> None:
    charge = declining(store, [])

    @eo.once(store, scope="pay", key="id")
    def pay(id: str) -> None:
        charge(id)

    assert isinstance(dispatcher(pay, retry=Retry(4))("pay_1"), Reject)
