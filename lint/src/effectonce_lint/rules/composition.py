"""Rules about effects that belong together: a row and a message, a step and what undoes it."""

from __future__ import annotations

from . import Rule

RULES = [
    Rule(
        id="EO401",
        name="dual-write",
        severity="warning",
        confidence=0.6,
        summary="A message is published after the database has committed, without an outbox.",
        why="""\
If the process dies between the commit and the publish, the event is not sent. If the consumer skips duplicates, the
redelivery does not send it either. Write the event into an outbox in the same transaction, and let a relay send it.""",
        bad="""\
import json

from celery import shared_task
from kafka import KafkaProducer
from sqlalchemy import create_engine, text

engine = create_engine("postgresql://db/shop")
producer = KafkaProducer()


@shared_task
def pay(message_id, order_id):
    with engine.begin() as conn:
        conn.execute(text("INSERT INTO processed (message_id) VALUES (:id)"), {"id": message_id})
        conn.execute(text("UPDATE orders SET status = 'paid' WHERE id = :id"), {"id": order_id})
    producer.send("order-paid", json.dumps({"order": order_id}).encode())
""",
        good="""\
from celery import shared_task
from sqlalchemy import create_engine, text

engine = create_engine("postgresql://db/shop")


@shared_task
def pay(message_id, order_id):
    with engine.begin() as conn:
        conn.execute(text("INSERT INTO processed (message_id) VALUES (:id)"), {"id": message_id})
        conn.execute(text("UPDATE orders SET status = 'paid' WHERE id = :id"), {"id": order_id})
        conn.execute(
            text("INSERT INTO outbox (id, type, data) VALUES (:id, 'order.paid', :data)"),
            {"id": message_id, "data": order_id},
        )
""",
        modes="T with the outbox: `outbox.send(conn, message)` in the transaction of the effect.",
    ),
    Rule(
        id="EO402",
        name="unsafe-compensation",
        severity="error",
        confidence=0.5,
        summary="A compensation has no guard, so it undoes a step again each time it runs.",
        why="""\
A compensation is retried like everything else: it crashes half-way, the message comes back, and the step fails again.
Then a refund without a key happens twice, and stock is added back twice. Guard compensations as well.""",
        bad="""\
import stripe
from celery import shared_task

from shop.shipping import book


@shared_task
def fulfil(message_id, order):
    charge = stripe.Charge.create(amount=order["amount"], currency="eur", idempotency_key=message_id)
    try:
        book(order)
    except ConnectionError:
        stripe.Refund.create(charge=charge.id)
        raise
""",
        good="""\
import stripe
from celery import shared_task

from shop.shipping import book


@shared_task
def fulfil(message_id, order):
    charge = stripe.Charge.create(amount=order["amount"], currency="eur", idempotency_key=message_id)
    try:
        book(order)
    except ConnectionError:
        stripe.Refund.create(charge=charge.id, idempotency_key=f"refund:{message_id}")
        raise
""",
        modes="K or T, for the compensation as well. `eo.Saga` records each step and each compensation once.",
    ),
]
