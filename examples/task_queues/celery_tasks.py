"""Charge a card once, however often the task is delivered: celery -A celery_tasks worker -l INFO"""

import os
import time

from celery import Celery

import effectonce as eo
from effectonce.integrations.celery import OnceTask
from effectonce.telemetry.logging import EventLogger

broker = os.environ.get("BROKER", "redis://localhost:6379/0")
app = Celery("shop", broker=broker, backend=broker)
app.conf.broker_transport_options = {"visibility_timeout": int(os.environ.get("VISIBILITY", "3600"))}
store = eo.connect(os.environ.get("EFFECTONCE_STORE", broker))
EventLogger().watch(store)  # a line in the log for each duplicate, and for what is in doubt


@app.task(base=OnceTask)
@eo.once(store, scope="charge-card", key="payment_id", lease="2s", on_error="doubt", on_lapse="doubt")
def charge(payment_id: str, amount: int) -> str:
    with open("bank.txt", "a") as book:  # the effect outside, and the time until the bank confirms it
        print(payment_id, amount, file=book)
    time.sleep(float(os.environ.get("BANK_SECONDS", "0.1")))
    return f"receipt for {payment_id}"


@app.task
def thank(receipt: str) -> str:  # effectonce: ignore[P11] a second letter does no harm
    with open("thanks.txt", "a") as letters:
        print(receipt, file=letters)
    return f"thanks for the {receipt}"
