# ruff: noqa
"""What effectonce itself and its like do: all of this is guarded."""

import aio_pika
import effectonce as eo
import psycopg
import stripe
from babelqueue import BabelQueue
from babelqueue.idempotency import InMemoryStore, wrap
from celery import shared_task
from confluent_kafka import Consumer
from effectonce import Inbox, Intents, Outbox, Worker, once
from fastapi import FastAPI
from kafka import KafkaProducer

store = eo.connect("redis://localhost")
inbox = Inbox(scope="billing")
outbox = Outbox(to="orders")
intents = Intents("postgresql://localhost/shop")
worker = Worker("orders", broker="amqp://localhost", store=store)
plain_worker = Worker("orders", broker="amqp://localhost")
conn = psycopg.connect("dbname=shop")
producer = KafkaProducer()
queue = BabelQueue("redis://localhost")


@shared_task
@once(store, scope="charge", key="payment_id")
def charge(payment_id, amount):  # expect: clean
    stripe.Charge.create(amount=amount, currency="eur")


@shared_task
def charge_in_block(payment_id, amount):  # expect: clean
    with eo.block(store, scope="charge", key=payment_id) as b:
        if b.first:
            b.result = stripe.Charge.create(amount=amount, currency="eur").id


@shared_task
def credit(message, account, amount):  # expect: clean
    with conn.transaction():
        if inbox.first(conn, message):
            conn.execute("UPDATE accounts SET balance = balance + %s WHERE id = %s", (amount, account))
            outbox.send(conn, eo.Message(type="credited", data={"account": account}))


@eo.once(store, scope="mail", key="user_id")
def greet(user_id):
    stripe.Customer.create(name=user_id)


@shared_task
def greet_task(user_id):  # expect: clean
    """The guard is one call away."""
    greet(user_id)


@worker.handler("order.paid")
def on_paid(message):  # expect: clean
    conn.execute("UPDATE accounts SET balance = balance + 1 WHERE id = %s", (message.data["account"],))


@plain_worker.handler("order.paid")
def on_paid_unguarded(message):  # expect: P11
    """A worker without a store or an inbox guards nothing."""
    conn.execute("UPDATE accounts SET balance = balance + 1 WHERE id = %s", (message.data["account"],))


@shared_task
@eo.once(store, scope="x", key="delivery_tag")
def keyed_by_tag(delivery_tag, amount):  # expect: EO301
    stripe.Charge.create(amount=amount, currency="eur")


def on_babel(data, meta):  # expect: clean
    stripe.Charge.create(amount=data["amount"], currency="eur")


queue.register("urn:babel:payments:requested", wrap(InMemoryStore(), on_babel))


def on_babel_bare(data, meta):  # expect: P11, EO303
    stripe.Charge.create(amount=data["amount"], currency="eur")


queue.register("urn:babel:payments:again", on_babel_bare)
