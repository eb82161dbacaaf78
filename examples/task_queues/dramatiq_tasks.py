"""Charge a card once, however often the message is delivered: dramatiq dramatiq_tasks"""

import os
import time

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker

import effectonce as eo
from effectonce.integrations.dramatiq import Idempotency
from effectonce.telemetry.logging import EventLogger

broker = RabbitmqBroker(url=os.environ.get("BROKER", "amqp://guest:guest@localhost:5672"))
store = eo.connect(os.environ.get("EFFECTONCE_STORE", "redis://localhost:6379/0"))
EventLogger().watch(store)  # a line in the log for each duplicate, and for what is in doubt
broker.add_middleware(Idempotency(store, lease="2s", on_error="doubt", on_lapse="doubt"))
dramatiq.set_broker(broker)


@dramatiq.actor(once="payment_id")
def charge(payment_id: str, amount: int) -> None:
    with open("bank.txt", "a") as book:  # the effect outside, and the time until the bank confirms it
        print(payment_id, amount, file=book)
    time.sleep(float(os.environ.get("BANK_SECONDS", "0.1")))
