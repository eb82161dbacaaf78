"""Charge a card once, however often the message is delivered: python app.py"""

import asyncio
import os

from faststream import AckPolicy, FastStream
from faststream.rabbit import RabbitBroker
from pydantic import BaseModel

import effectonce as eo
from effectonce.integrations.faststream import Idempotency

store = eo.connect(os.environ.get("EFFECTONCE_STORE", "redis://localhost:6379/0"))
once = Idempotency(store, scope="billing", key="payment-id", lease="2s", on_error="doubt", on_lapse="doubt")
broker = RabbitBroker(os.environ.get("BROKER", "amqp://guest:guest@localhost:5672"), middlewares=[once])
app = FastStream(broker)


class Payment(BaseModel):
    amount: int


@broker.subscriber("payments", ack_policy=AckPolicy.NACK_ON_ERROR)
async def charge(payment: Payment) -> None:
    with open("bank.txt", "a") as book:  # the outside effect, and a while until the bank confirms it
        print(eo.current().key, payment.amount, file=book)
    await asyncio.sleep(float(os.environ.get("BANK_SECONDS", "0.1")))


if __name__ == "__main__":
    asyncio.run(app.run())
