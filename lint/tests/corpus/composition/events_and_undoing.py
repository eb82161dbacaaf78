# ruff: noqa
"""Rows and messages that belong together; steps and what undoes them."""

import json

import pika
import requests
import stripe
from celery import shared_task
from django.db import transaction
from django.db.models import F
from fastapi import Depends, FastAPI
from kafka import KafkaProducer
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

import effectonce as eo
from shop.models import InboxMessage, Order, Stock
from shop.shipping import book_parcel
from shop.tasks import send_receipt

engine = create_engine("postgresql://localhost/shop")
producer = KafkaProducer()
channel = pika.BlockingConnection().channel()
store = eo.connect("postgresql://localhost/shop")
outbox = eo.Outbox(to="orders")
inbox = eo.Inbox(scope="orders")
app = FastAPI()


# -- publish after commit


@shared_task
def inbox_then_publish(message_id, order_id):  # expect: EO401
    with engine.begin() as conn:
        conn.execute(text("INSERT INTO inbox (id) VALUES (:id)"), {"id": message_id})
        conn.execute(text("UPDATE orders SET state = 'paid' WHERE id = :id"), {"id": order_id})
    channel.basic_publish(exchange="", routing_key="paid", body=json.dumps({"id": order_id}))


@shared_task
def inbox_then_enqueue(message_id, order_id):  # expect: EO401
    with transaction.atomic():
        _, created = InboxMessage.objects.get_or_create(message_id=message_id)
        if not created:
            return
        Order.objects.filter(pk=order_id).update(state="paid")
    send_receipt.delay(order_id)


@shared_task
def publish_before_commit(message_id, order_id):  # expect: clean
    """Sent with the message's own id, and again if the commit fails: consumers can dedup that."""
    with engine.begin() as conn:
        conn.execute(text("INSERT INTO inbox (id) VALUES (:id)"), {"id": message_id})
        conn.execute(text("UPDATE orders SET state = 'paid' WHERE id = :id"), {"id": order_id})
        channel.basic_publish(
            exchange="", routing_key="paid", body=b"{}", properties=pika.BasicProperties(message_id=message_id)
        )


@shared_task
def enqueue_on_commit(message_id, order_id):  # expect: clean
    with transaction.atomic():
        _, created = InboxMessage.objects.get_or_create(message_id=message_id)
        if not created:
            return
        Order.objects.filter(pk=order_id).update(state="paid")
        transaction.on_commit(lambda: send_receipt.delay(order_id))


@shared_task
@eo.once(store, scope="pay", key="message_id")
def guarded_as_a_whole(message_id, order_id):  # expect: clean
    """It runs again until all of it is done."""
    with engine.begin() as conn:
        conn.execute(text("UPDATE orders SET state = 'paid' WHERE id = :id"), {"id": order_id})
    producer.send("paid", json.dumps({"id": order_id}).encode())


@shared_task
def through_our_outbox(message, order_id):  # expect: clean
    with engine.begin() as conn:
        if inbox.first(conn, message):
            conn.execute(text("UPDATE orders SET state = 'paid' WHERE id = :id"), {"id": order_id})
            outbox.send(conn, eo.Message(type="paid", data={"id": order_id}))


@shared_task
def our_inbox_then_publish(message, order_id):  # expect: EO401
    with engine.begin() as conn:
        if not inbox.first(conn, message):
            return
        conn.execute(text("UPDATE orders SET state = 'paid' WHERE id = :id"), {"id": order_id})
    producer.send("paid", json.dumps({"id": order_id}).encode())


@app.post("/orders")
def place_order(order: dict):  # expect: EO401
    """No consumer, but the same hole."""
    with Session(engine) as session:
        session.add(Order(**order))
        session.commit()
    producer.send("placed", json.dumps(order).encode())
    return {"ok": True}


@app.post("/drafts")
def save_draft(order: dict):
    with Session(engine) as session:
        session.add(Order(**order))
        session.commit()
    return {"ok": True}


# -- undoing


@shared_task
def refund_in_except(message_id, order):  # expect: EO402
    charge = stripe.Charge.create(amount=order["amount"], currency="eur", idempotency_key=message_id)
    try:
        book_parcel(order)
    except Exception:
        stripe.Refund.create(charge=charge.id)
        raise


@shared_task
def refund_through_gateway(message_id, order):  # expect: EO402
    charge = stripe.Charge.create(amount=order["amount"], currency="eur", idempotency_key=message_id)
    try:
        book_parcel(order)
    except ConnectionError:
        undo(charge.id)
        raise


def undo(charge):
    return stripe.Refund.create(charge=charge)


@shared_task
def stock_back_in_except(message_id, order):  # expect: EO402
    with transaction.atomic():
        InboxMessage.objects.filter(message_id=message_id).update(seen=True)
    try:
        book_parcel(order)
    except Exception:
        Stock.objects.filter(sku=order["sku"]).update(quantity=F("quantity") + 1)
        raise


@shared_task
def alert_in_except(message_id, order):  # expect: clean
    """Telling somebody is no undoing."""
    try:
        book_parcel(order)
    except Exception as error:
        requests.post("https://alerts.example/incidents", json={"error": str(error)}, timeout=5)
        raise


def charge_step(order):
    stripe.Charge.create(amount=order["amount"], currency="eur", idempotency_key=order["id"])


def refund_step(order):  # expect: EO402
    stripe.Refund.create(charge=order["charge"])


def keyed_refund_step(order):  # expect: clean
    stripe.Refund.create(charge=order["charge"], idempotency_key=f"refund:{order['id']}")


def restock_step(order):  # expect: EO402
    with engine.begin() as conn:
        conn.execute(text("UPDATE stock SET n = n + 1 WHERE sku = :sku"), {"sku": order["sku"]})


def cancel_step(order):  # expect: clean
    with engine.begin() as conn:
        conn.execute(text("UPDATE orders SET state = 'cancelled' WHERE id = :id"), {"id": order["id"]})


def build(saga):
    saga.step(charge_step, compensate=refund_step)
    saga.step(charge_step, compensate=keyed_refund_step)
    saga.step(charge_step, compensation=restock_step)
    saga.step(charge_step, compensate=cancel_step)
