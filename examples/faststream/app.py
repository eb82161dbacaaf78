"""Charge a card once, however often the message is delivered: faststream run app:app"""

import asyncio
import os
import sys

from faststream import AckPolicy, FastStream
from faststream.rabbit import RabbitBroker, RabbitQueue
from pydantic import BaseModel

import effectonce as eo
from effectonce.integrations.faststream import Idempotency
from effectonce.telemetry.logging import EventLogger

store = eo.connect(os.environ.get("EFFECTONCE_STORE", "redis://localhost:6379/0"))
EventLogger().watch(store)  # a line in the log for each duplicate, and for what is in doubt
once = Idempotency(store, scope="billing", key="payment-id", lease="2s", on_error="doubt", on_lapse="doubt")
broker = RabbitBroker(os.environ.get("BROKER", "amqp://guest:guest@localhost:5672"), middlewares=[once])
app = FastStream(broker)

dead = RabbitQueue("card-payments.dead", durable=True)  # without one, RabbitMQ drops what is rejected
queue = RabbitQueue(
    "card-payments",
    durable=True,
    arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "card-payments.dead"},
)


class Payment(BaseModel):
    amount: int


@app.on_startup
async def declare() -> None:
    await broker.connect()
    await broker.declare_queue(dead)


@broker.subscriber(queue, ack_policy=AckPolicy.NACK_ON_ERROR)
async def charge(payment: Payment) -> None:
    with open("bank.txt", "a") as book:  # the effect outside, and the time until the bank confirms it
        print(eo.current().key, payment.amount, file=book)
    await asyncio.sleep(float(os.environ.get("BANK_SECONDS", "0.1")))


async def send(payment_id: str) -> None:
    async with broker:
        await broker.declare_queue(queue)
        await broker.publish({"amount": 4200}, queue, headers={"payment-id": payment_id}, persist=True)


if __name__ == "__main__":
    asyncio.run(send(sys.argv[1] if len(sys.argv) > 1 else "p1"))
