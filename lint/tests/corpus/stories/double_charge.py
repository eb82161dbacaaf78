# ruff: noqa
"""The stories that are told of double charges, and the same consumers put right."""

import hashlib
import json

import boto3
import pika
import psycopg
import redis
import stripe
from confluent_kafka import Consumer
from psycopg.errors import UniqueViolation

db = psycopg.connect("dbname=shop")
cache = redis.Redis()
sqs = boto3.client("sqs")


# A worker charges the card and dies before it can ack.


def charge_then_crash(channel, method, properties, body):  # expect: P11, EO303
    payment = json.loads(body)
    stripe.Charge.create(amount=payment["amount"], currency="eur", source=payment["card"])
    channel.basic_ack(method.delivery_tag)


def charge_with_forwarded_key(channel, method, properties, body):  # expect: clean
    payment = json.loads(body)
    stripe.Charge.create(
        amount=payment["amount"], currency="eur", source=payment["card"], idempotency_key=properties.message_id
    )
    channel.basic_ack(method.delivery_tag)


# "Increment balance by 10" is not idempotent; "set order status to paid" is.


def deduct_ten(channel, method, properties, body):  # expect: P11
    with db.transaction():
        db.execute("UPDATE accounts SET balance = balance - 10 WHERE user_id = %s", (json.loads(body)["user"],))
    channel.basic_ack(method.delivery_tag)


def verify_mail(channel, method, properties, body):  # expect: clean
    with db.transaction():
        db.execute("UPDATE users SET email_verified = true WHERE user_id = %s", (json.loads(body)["user"],))
    channel.basic_ack(method.delivery_tag)


def deduct_ten_once(channel, method, properties, body):  # expect: clean
    with db.transaction():
        seen = db.execute(
            "INSERT INTO processed (msg_id, created_at) VALUES (%s, now()) ON CONFLICT DO NOTHING", (properties.message_id,)
        )
        if seen.rowcount == 1:
            db.execute("UPDATE accounts SET balance = balance - 10 WHERE user_id = %s", (json.loads(body)["user"],))
    channel.basic_ack(method.delivery_tag)


# A quick SELECT before charging; duplicates dropped to zero, for three weeks.


def select_before_charging(channel, method, properties, body):  # expect: EO101, EO103, EO303
    payment = json.loads(body)
    if db.execute("SELECT 1 FROM processed WHERE msg_id = %s", (payment["msg_id"],)).fetchone():
        channel.basic_ack(method.delivery_tag)
        return
    stripe.Charge.create(amount=payment["amount"], currency="eur")
    db.execute("INSERT INTO processed (msg_id) VALUES (%s)", (payment["msg_id"],))
    db.commit()
    channel.basic_ack(method.delivery_tag)


def insert_first(channel, method, properties, body):  # expect: clean
    payment = json.loads(body)
    try:
        with db.transaction():
            db.execute("INSERT INTO processed (msg_id, created_at) VALUES (%s, now())", (payment["msg_id"],))
            db.execute("UPDATE orders SET status = 'paid' WHERE id = %s", (payment["order"],))
            db.execute("INSERT INTO payments (order_id, amount) VALUES (%s, %s)", (payment["order"], payment["amount"]))
    except UniqueViolation:
        pass
    channel.basic_ack(method.delivery_tag)


def intent_log(channel, method, properties, body):  # expect: clean
    payment = json.loads(body)
    key = payment["msg_id"]
    db.execute("INSERT INTO stripe_intents (msg_id, status) VALUES (%s, 'pending') ON CONFLICT DO NOTHING", (key,))
    db.commit()
    charge = stripe.Charge.create(amount=payment["amount"], currency="eur", idempotency_key=key)
    db.execute("UPDATE stripe_intents SET status = 'completed', charge_id = %s WHERE msg_id = %s", (charge.id, key))
    db.commit()
    channel.basic_ack(method.delivery_tag)


# Keys: from the queue, from the payload, from the sender.


def keyed_by_queue():  # expect: EO301
    while True:
        for message in sqs.receive_message(QueueUrl="payments").get("Messages", []):
            payment = json.loads(message["Body"])
            stripe.Charge.create(amount=payment["amount"], currency="eur", idempotency_key=message["MessageId"])
            sqs.delete_message(QueueUrl="payments", ReceiptHandle=message["ReceiptHandle"])


def keyed_by_payload(channel, method, properties, body):  # expect: EO302
    key = hashlib.sha256(body).hexdigest()
    stripe.Charge.create(amount=json.loads(body)["amount"], currency="eur", idempotency_key=key)
    channel.basic_ack(method.delivery_tag)


def keyed_by_sender(channel, method, properties, body):  # expect: clean
    event = json.loads(body)
    key = f"{event['aggregate_type']}:{event['aggregate_id']}:{properties.message_id}"
    stripe.Charge.create(amount=event["amount"], currency="eur", idempotency_key=key)
    channel.basic_ack(method.delivery_tag)


# Kafka: processed keys in the transaction of the business logic, offsets after it.


def offsets_in_database():  # expect: clean
    consumer = Consumer({"bootstrap.servers": "k", "group.id": "g", "enable.auto.commit": False})
    consumer.subscribe(["payments"])
    while True:
        message = consumer.poll(1.0)
        if message is None or message.error():
            continue
        payment = json.loads(message.value())
        with db.transaction():
            known = db.execute("SELECT 1 FROM processed_offsets WHERE key = %s", (payment["idempotencyKey"],)).fetchone()
            if known is None:
                db.execute("UPDATE accounts SET balance = balance + %s WHERE id = %s", (payment["amount"], payment["account"]))
                db.execute("INSERT INTO processed_offsets (key, processed_at) VALUES (%s, now())", (payment["idempotencyKey"],))
        consumer.commit(message)


# The dedup store of the book: check and lock in one step, complete or give back.


class IdempotencyStore:
    def __init__(self, client):
        self.redis = client

    def check_and_lock(self, key, ttl):
        return self.redis.set(f"idempotency:{key}", "processing", nx=True, ex=ttl)

    def mark_completed(self, key, ttl):
        self.redis.set(f"idempotency:{key}", "completed", ex=ttl)

    def mark_failed(self, key):
        self.redis.delete(f"idempotency:{key}")


store = IdempotencyStore(cache)


def template(channel, method, properties, body):  # expect: clean
    payment = json.loads(body)
    key = payment["message_id"]
    if not store.check_and_lock(key, 7 * 24 * 3600):
        channel.basic_ack(method.delivery_tag)
        return
    try:
        stripe.Charge.create(amount=payment["amount"], currency="eur")
        store.mark_completed(key, 7 * 24 * 3600)
    except Exception:
        store.mark_failed(key)
        channel.basic_nack(method.delivery_tag)
        raise
    channel.basic_ack(method.delivery_tag)


# Compensation must be idempotent too.


def refund_on_failure(channel, method, properties, body):  # expect: EO402
    order = json.loads(body)
    charge = stripe.Charge.create(amount=order["amount"], currency="eur", idempotency_key=f"charge:{order['id']}")
    try:
        ship(order)
    except ConnectionError:
        stripe.Refund.create(charge=charge.id)
        raise
    channel.basic_ack(method.delivery_tag)


def refund_on_failure_once(channel, method, properties, body):  # expect: clean
    order = json.loads(body)
    charge = stripe.Charge.create(amount=order["amount"], currency="eur", idempotency_key=f"charge:{order['id']}")
    try:
        ship(order)
    except ConnectionError:
        stripe.Refund.create(charge=charge.id, idempotency_key=f"refund:{order['id']}")
        raise
    channel.basic_ack(method.delivery_tag)


# The event that is published after the commit.


def paid_event(channel, method, properties, body):  # expect: EO401
    order = json.loads(body)
    with db.transaction():
        if db.execute("INSERT INTO inbox (id) VALUES (%s) ON CONFLICT DO NOTHING", (order["message_id"],)).rowcount == 0:
            return
        db.execute("UPDATE orders SET status = 'paid', paid_amount = %s WHERE id = %s", (order["amount"], order["id"]))
    channel.basic_publish(exchange="", routing_key="order.paid", body=json.dumps({"id": order["id"]}))
    channel.basic_ack(method.delivery_tag)


def paid_event_through_outbox(channel, method, properties, body):  # expect: clean
    order = json.loads(body)
    with db.transaction():
        if db.execute("INSERT INTO inbox (id) VALUES (%s) ON CONFLICT DO NOTHING", (order["message_id"],)).rowcount == 0:
            return
        db.execute("UPDATE orders SET status = 'paid', paid_amount = %s WHERE id = %s", (order["amount"], order["id"]))
        db.execute(
            "INSERT INTO outbox (id, aggregate_type, event_type, payload) VALUES (%s, 'Order', 'OrderPaid', %s)",
            (order["message_id"], json.dumps(order)),
        )
    channel.basic_ack(method.delivery_tag)


def ship(order):
    raise ConnectionError


def main():
    channel = pika.BlockingConnection().channel()
    for queue, handler in (
        ("a", charge_then_crash),
        ("b", charge_with_forwarded_key),
        ("c", deduct_ten),
        ("d", verify_mail),
        ("e", deduct_ten_once),
        ("f", select_before_charging),
        ("g", insert_first),
        ("h", intent_log),
        ("i", keyed_by_payload),
        ("j", keyed_by_sender),
        ("k", template),
        ("l", refund_on_failure),
        ("m", refund_on_failure_once),
        ("n", paid_event),
        ("o", paid_event_through_outbox),
    ):
        channel.basic_consume(queue, handler)
    channel.start_consuming()
