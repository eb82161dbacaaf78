"""FastStream on real Redis: streams with a group, a duplicate, and one beside the first."""

from __future__ import annotations

import asyncio

from faststream.redis import RedisBroker, StreamSub
from pydantic import BaseModel

import effectonce as eo
from effectonce.integrations.faststream import Idempotency


class Payment(BaseModel):
    amount: int


async def test_a_payment_is_charged_once(redis_url: str, unique_name: str) -> None:
    """The producer sends it three times; two consumers of the group get them, one while the first is at work."""
    charged: list[tuple[str, int]] = []
    begun, over, last = asyncio.Event(), asyncio.Event(), asyncio.Event()
    async with eo.connect(f"{redis_url}?namespace={unique_name}") as store:
        brokers = []
        for consumer in ("one", "two"):
            broker = RedisBroker(redis_url, middlewares=[Idempotency(store, scope="billing", key="payment-id")])
            brokers.append(broker)

            @broker.subscriber(
                stream=StreamSub(unique_name, group="billing", consumer=consumer, last_id=">", polling_interval=10)
            )
            async def charge(payment: Payment) -> None:
                charged.append((eo.current().key, payment.amount))
                if payment.amount == 0:
                    last.set()
                    return
                begun.set()
                await over.wait()

        for broker in brokers:
            await broker.start()
        for _ in range(3):
            await brokers[0].publish(Payment(amount=7), stream=unique_name, headers={"payment-id": "p1"})
        await asyncio.wait_for(begun.wait(), 30)
        over.set()
        await brokers[0].publish(Payment(amount=0), stream=unique_name, headers={"payment-id": "end"})
        await asyncio.wait_for(last.wait(), 30)
        for broker in brokers:
            await broker.stop()
    assert sorted(charged) == [("end", 0), ("p1", 7)]
