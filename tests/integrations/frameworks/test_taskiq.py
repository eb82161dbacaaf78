"""taskiq: the guard below ``@broker.task``, through its in-memory broker and receiver."""

from __future__ import annotations

import pickle
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from taskiq import Context, InMemoryBroker, TaskiqDepends

import effectonce as eo


@dataclass
class Receipt:
    payment_id: str
    amount: int


@pytest.fixture
async def broker() -> AsyncIterator[InMemoryBroker]:
    broker = InMemoryBroker(await_inplace=True)
    await broker.startup()
    yield broker
    await broker.shutdown()


@pytest.fixture(params=["def", "async def"])
def charge(request: pytest.FixtureRequest, store: eo.Store, charges: list[str]) -> Callable[..., Any]:
    once = eo.once(store, scope="charge", key="payment_id")
    if request.param == "def":

        @once
        def charge(payment_id: str, amount: int = 1, context: Annotated[Any, TaskiqDepends(Context)] = None) -> Receipt:
            """Charge a card."""
            charges.append(payment_id)
            assert context.message.task_id
            return Receipt(payment_id, amount)

        return charge

    @once
    async def charge_async(
        payment_id: str, amount: int = 1, context: Annotated[Any, TaskiqDepends(Context)] = None
    ) -> Receipt:
        """Charge a card."""
        charges.append(payment_id)
        assert context.message.task_id
        return Receipt(payment_id, amount)

    return charge_async


async def test_a_task_sent_twice_has_one_effect_and_one_result(
    broker: InMemoryBroker, charge: Any, charges: list[str]
) -> None:
    task = broker.task(charge)
    for _ in range(2):
        sent = await task.kiq("p1", amount=4200)
        result = await sent.wait_result(timeout=60)
        assert (result.is_err, result.return_value) == (False, Receipt("p1", 4200))
    await task.kiq("p2")
    assert charges == ["p1", "p2"]


async def test_one_message_delivered_twice_has_one_effect(
    broker: InMemoryBroker, charge: Any, charges: list[str]
) -> None:
    task = broker.task(charge)
    message = broker.formatter.dumps(task.kicker().with_task_id("one-and-the-same")._prepare_message("p1", amount=7))
    for _ in range(2):
        await broker.kick(message)
    assert charges == ["p1"]
    assert (await broker.result_backend.get_result("one-and-the-same")).return_value == Receipt("p1", 7)


async def test_the_task_has_the_functions_names_and_return_type(broker: InMemoryBroker, charge: Any) -> None:
    name = charge.__name__
    task = broker.task(charge)
    assert (task.task_name, task.__doc__, task.return_type) == (f"{__name__}:{name}", "Charge a card.", Receipt)


def refund(payment_id: str) -> str:
    return payment_id


async def test_the_function_it_sends_to_a_process_pool_is_the_guarded_one(
    broker: InMemoryBroker, store: eo.Store
) -> None:
    """taskiq renames what it wraps, so that a pool can import it under the new name."""
    guarded = eo.once(store, key="payment_id")(refund)
    task = broker.task(guarded)
    assert pickle.loads(pickle.dumps(task.original_func)) is guarded
    assert (refund.__name__, guarded.scope) == ("refund", f"{__name__}:refund")


async def test_a_task_that_raised_runs_again(broker: InMemoryBroker, store: eo.Store, charges: list[str]) -> None:
    @broker.task
    @eo.once(store, scope="charge", key="payment_id")
    async def charge(payment_id: str) -> None:
        charges.append(payment_id)
        if len(charges) == 1:
            raise RuntimeError("card reader on fire")

    failed = [(await (await charge.kiq("p1")).wait_result(timeout=60)).is_err for _ in range(3)]
    assert (failed, charges) == ([True, False, False], ["p1", "p1"])
