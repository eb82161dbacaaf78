"""FastStream: the guard below ``@broker.subscriber``, in memory through its own test broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import pytest
from faststream import Context, Depends
from faststream.redis import RedisBroker, TestRedisBroker
from pydantic import BaseModel

import effectonce as eo


class Payment(BaseModel):
    id: str
    amount: int


def tenant() -> str:
    return "acme"


@pytest.fixture
def broker() -> RedisBroker:
    return RedisBroker()


@pytest.fixture(params=["def", "async def"])
def charge(request: pytest.FixtureRequest, store: eo.Store, charges: list[str]) -> Callable[..., Any]:
    once = eo.once(store, scope="charge", key="payment.id")
    if request.param == "def":

        @once
        def charge(
            payment: Payment,
            tenant: Annotated[str, Depends(tenant)],
            correlation_id: Annotated[str, Context("message.correlation_id")],
        ) -> str:
            charges.append(f"{tenant}/{payment.id}")
            assert correlation_id
            return f"charged {payment.amount}"

        return charge

    @once
    async def acharge(
        payment: Payment,
        tenant: Annotated[str, Depends(tenant)],
        correlation_id: Annotated[str, Context("message.correlation_id")],
    ) -> str:
        charges.append(f"{tenant}/{payment.id}")
        assert correlation_id
        return f"charged {payment.amount}"

    return acharge


async def test_a_message_delivered_twice_is_handled_once(broker: RedisBroker, charge: Any, charges: list[str]) -> None:
    broker.subscriber("payments")(charge)
    async with TestRedisBroker(broker) as delivering:
        for _ in range(2):
            await delivering.publish(Payment(id="p1", amount=4200), "payments")
        await delivering.publish({"id": "p2", "amount": 1}, "payments")
    assert charges == ["acme/p1", "acme/p2"]


async def test_both_requests_get_the_first_ones_reply(broker: RedisBroker, charge: Any, charges: list[str]) -> None:
    broker.subscriber("payments")(charge)
    async with TestRedisBroker(broker) as delivering:
        replies = [await delivering.request({"id": "p1", "amount": 4200}, "payments") for _ in range(2)]
        assert [await reply.decode() for reply in replies] == ["charged 4200", "charged 4200"]
    assert charges == ["acme/p1"]


async def test_a_publisher_above_the_guard_publishes_for_both(
    broker: RedisBroker, charge: Any, charges: list[str]
) -> None:
    published: list[str] = []

    @broker.subscriber("receipts")
    async def receipt(text: str) -> None:
        published.append(text)

    broker.subscriber("payments")(broker.publisher("receipts")(charge))
    async with TestRedisBroker(broker) as delivering:
        for _ in range(2):
            await delivering.publish({"id": "p1", "amount": 4200}, "payments")
    assert (charges, published) == (["acme/p1"], ["charged 4200"] * 2)


async def test_a_handler_that_raises_lets_the_next_delivery_run(
    broker: RedisBroker, store: eo.Store, charges: list[str]
) -> None:
    @broker.subscriber("payments")
    @eo.once(store, scope="charge", key="payment.id")
    async def charge(payment: Payment) -> None:
        charges.append(payment.id)
        if len(charges) == 1:
            raise RuntimeError("card reader on fire")

    async with TestRedisBroker(broker) as delivering:
        with pytest.raises(RuntimeError, match="on fire"):
            await delivering.publish({"id": "p1", "amount": 1}, "payments")
        for _ in range(2):
            await delivering.publish({"id": "p1", "amount": 1}, "payments")
    assert charges == ["p1", "p1"]
