# ruff: noqa
# expect file: EO301
import json

import stripe
from confluent_kafka import Consumer


def key_for(message):
    return f"{message.topic()}-{message.partition()}-{message.offset()}"


def main():
    consumer = Consumer({"bootstrap.servers": "k", "group.id": "g", "enable.auto.commit": False})
    consumer.subscribe(["pay"])
    while True:
        m = consumer.poll(1)
        if m is None or m.error():
            continue
        body = json.loads(m.value())
        stripe.PaymentIntent.create(amount=body["cents"], currency="eur", idempotency_key=key_for(m))
        consumer.commit(m)
