"""Rules about the guard: there is none, or it has a hole."""

from __future__ import annotations

from . import Rule

RULES = [
    Rule(
        id="P11",
        name="unguarded-effect",
        severity="error",
        summary="A consumer has an effect that shows twice when its message is delivered twice, and nothing guards it.",
        why="""\
Queues, webhooks and retried calls deliver at least once: a worker that dies between the effect and the ack gets the
same message again. A consumer that charges, sends, inserts or counts does so once more. An effect is harmless only if
doing it twice changes nothing: an upsert, `SET status = 'paid'`, a delete by id.

In a design, the rule judges what the design says. If a list in prose does not mention duplicates, that is a finding
only if the document says that they occur (at least once), or how another consumer handles them.""",
        bad="""\
import stripe
from celery import shared_task


@shared_task
def charge(payment_id, amount):
    stripe.Charge.create(amount=amount, currency="eur", source="tok_visa")
""",
        good="""\
import effectonce as eo
import stripe
from celery import shared_task

store = eo.connect("postgresql://db/shop")


@shared_task
@eo.once(store, scope="charge-card", key="payment_id", retention="30d")
def charge(payment_id, amount):
    stripe.Charge.create(
        amount=amount, currency="eur", source="tok_visa", idempotency_key=eo.current().provider_key("stripe")
    )
""",
        modes="""\
T for writes in a database of your own, K for an API that keeps idempotency keys, I for one that does not, L for
anything else. S only for what is idempotent already.""",
    ),
    Rule(
        id="EO101",
        name="check-then-act",
        severity="error",
        summary="The look-up for duplicates and the record are two steps, and two deliveries fit between them.",
        why="""\
Two workers get the same message (a rebalance, an expired visibility timeout). Both look, both find nothing, both act.
Under load this is not rare. A crash between the effect and the record repeats the effect, too. Let the database decide,
in one atomic step that only the first delivery can pass.

In an SQL file the rule looks at the dedup tables: an inbox, `processed_messages`, `idempotency_keys` and the like. It
reports a table whose key has no primary key, unique constraint or unique index, in that file or in another migration. A
key that also has a number, a random id or the time of the insert (PostgreSQL's partitions need that) admits a second
row.""",
        bad="""\
import json

import pika
import psycopg2
import stripe

conn = psycopg2.connect("dbname=shop")


def on_payment(channel, method, properties, body):
    data = json.loads(body)
    with conn.cursor() as cur:
        cur.execute("SELECT 1 FROM processed WHERE msg_id = %s", (properties.message_id,))
        if cur.fetchone() is None:
            stripe.Charge.create(amount=data["amount"], currency="eur")
            cur.execute("INSERT INTO processed (msg_id) VALUES (%s)", (properties.message_id,))
            conn.commit()
    channel.basic_ack(method.delivery_tag)


channel = pika.BlockingConnection().channel()
channel.basic_consume("payments", on_payment)
""",
        good="""\
import json

import pika
import psycopg2
import stripe

conn = psycopg2.connect("dbname=shop")


def on_payment(channel, method, properties, body):
    data = json.loads(body)
    with conn, conn.cursor() as cur:
        cur.execute(
            "INSERT INTO processed (msg_id) VALUES (%s) ON CONFLICT DO NOTHING RETURNING 1", (properties.message_id,)
        )
        if cur.fetchone() is not None:
            stripe.Charge.create(amount=data["amount"], currency="eur", idempotency_key=properties.message_id)
    channel.basic_ack(method.delivery_tag)


channel = pika.BlockingConnection().channel()
channel.basic_consume("payments", on_payment)
""",
        modes="T (`if inbox.first(conn, message):`) or L (`@eo.once`): both claim in one atomic step.",
    ),
    Rule(
        id="EO102",
        name="dedup-outside-transaction",
        severity="error",
        summary="The dedup record and the rows it protects are committed in different transactions.",
        why="""\
A crash between the two commits leaves one without the other. If only the record is there, the message is lost. If only
the rows are there, they are written twice. So write both in one transaction.""",
        bad="""\
from celery import shared_task
from sqlalchemy import create_engine, text

engine = create_engine("postgresql://db/shop")


@shared_task
def credit(message_id, account, amount):
    with engine.begin() as conn:
        conn.execute(text("INSERT INTO processed (message_id) VALUES (:id)"), {"id": message_id})
    with engine.begin() as conn:
        conn.execute(text("UPDATE accounts SET balance = balance + :n WHERE id = :a"), {"n": amount, "a": account})
""",
        good="""\
from celery import shared_task
from sqlalchemy import create_engine, text

engine = create_engine("postgresql://db/shop")


@shared_task
def credit(message_id, account, amount):
    with engine.begin() as conn:
        conn.execute(text("INSERT INTO processed (message_id) VALUES (:id)"), {"id": message_id})
        conn.execute(text("UPDATE accounts SET balance = balance + :n WHERE id = :a"), {"n": amount, "a": account})
""",
        modes="T: `inbox.first(conn, message)` inside the transaction of the effect.",
    ),
    Rule(
        id="EO103",
        name="effect-before-record",
        severity="error",
        summary="The effect comes first, and the record that should have prevented it comes afterwards.",
        why="""\
When the unique constraint refuses the duplicate, the effect has already happened again. And a crash between the two
leaves an effect without a record. Write the record first: then a duplicate is refused before it runs.""",
        bad="""\
import psycopg2
from celery import shared_task
from twilio.rest import Client

conn = psycopg2.connect("dbname=shop")
twilio = Client()


@shared_task
def notify(message_id, phone):
    twilio.messages.create(to=phone, from_="+100", body="Your parcel is here")
    with conn, conn.cursor() as cur:
        cur.execute("INSERT INTO processed (message_id) VALUES (%s)", (message_id,))
""",
        good="""\
import psycopg2
from celery import shared_task
from twilio.rest import Client

conn = psycopg2.connect("dbname=shop")
twilio = Client()


@shared_task
def notify(message_id, phone):
    with conn, conn.cursor() as cur:
        cur.execute(
            "INSERT INTO sent (message_id, state) VALUES (%s, 'sending') ON CONFLICT DO NOTHING RETURNING 1",
            (message_id,),
        )
        is_first = cur.fetchone() is not None
    if not is_first:
        return  # sent already; or still 'sending', because a worker died there: an operator has to look
    twilio.messages.create(to=phone, from_="+100", body="Your parcel is here")
    with conn, conn.cursor() as cur:
        cur.execute("UPDATE sent SET state = 'sent' WHERE message_id = %s", (message_id,))
""",
        modes="I for calls (the intent is committed first), T for rows.",
    ),
    Rule(
        id="EO104",
        name="marked-before-success",
        severity="error",
        summary="The message is marked as done before the work has succeeded, and stays marked if it fails.",
        why="""\
The work raises, the message is delivered again, the mark says "done", and the message is dropped: it is lost. To claim
the message before the work is right, but the claim must be released if the work fails, and must end by itself if the
worker dies. If the work writes rows, write the claim in their transaction: a mark in Redis survives a rollback.""",
        bad="""\
import redis
import requests
from celery import shared_task

seen = redis.Redis()


@shared_task(bind=True, max_retries=5)
def ship(self, message_id, order):
    if seen.sismember("shipped", message_id):
        return
    seen.sadd("shipped", message_id)
    seen.expire("shipped", 1209600)
    try:
        requests.post("https://carrier.example/parcels", json=order, timeout=10)
    except requests.RequestException as error:
        raise self.retry(exc=error)
""",
        good="""\
import effectonce as eo
import requests
from celery import shared_task

store = eo.connect("redis://cache/0")


@shared_task(bind=True, max_retries=5)
@eo.once(store, scope="ship", key="message_id")
def ship(self, message_id, order):
    requests.post("https://carrier.example/parcels", json=order, timeout=10)
""",
        modes="L: the claim is released when the work raises, and its lease ends when the worker dies.",
    ),
    Rule(
        id="EO105",
        name="redis-dedup",
        severity="warning",
        summary="A dedup key in Redis is set without NX, or never expires.",
        why="""\
Two workers can come between a GET and a SET. SET with NX is one command. A key without an expiry stays forever: memory
grows until Redis evicts keys, and then it forgets the wrong ones. Delete the key if the work fails. If the worker is
killed after the SET, the message is still lost: only a lease, which ends by itself, prevents that.""",
        bad="""\
import redis
import requests
from celery import shared_task

cache = redis.Redis()


@shared_task
def ship(message_id, order):
    if not cache.set(f"shipped:{message_id}", 1, nx=True):
        return
    try:
        requests.post("https://carrier.example/parcels", json=order, timeout=10)
    except requests.RequestException:
        cache.delete(f"shipped:{message_id}")
        raise
""",
        good="""\
import redis
import requests
from celery import shared_task

cache = redis.Redis()


@shared_task
def ship(message_id, order):
    if not cache.set(f"shipped:{message_id}", 1, nx=True, ex=1296000):
        return
    try:
        requests.post("https://carrier.example/parcels", json=order, timeout=10)
    except requests.RequestException:
        cache.delete(f"shipped:{message_id}")  # else the next delivery is dropped
        raise
""",
        modes="L on Redis: one script claims, renews and records, and every key expires.",
        fix="Adds `nx=True` where the answer of SET is checked, and `ex=1296000` (15 days) where there is no expiry.",
    ),
    Rule(
        id="EO106",
        name="retention-too-short",
        severity="warning",
        summary="The dedup record expires before the broker stops delivering the message again.",
        why="""\
A message can come back after all of its retries, visibility timeouts, its time in the dead-letter queue and a redrive.
If the record has expired by then, the message is handled again. SQS keeps messages for up to 14 days; 15 days is a safe
default, 30 to 90 for money. Delete the key if the work fails, or the retry is taken for a duplicate.""",
        bad="""\
import redis
import requests
from celery import shared_task

cache = redis.Redis()


@shared_task(bind=True, max_retries=10, default_retry_delay=3600)
def ship(self, message_id, order):
    if not cache.set(f"shipped:{message_id}", 1, nx=True, ex=600):
        return
    try:
        requests.post("https://carrier.example/parcels", json=order, timeout=10)
    except requests.RequestException as error:
        cache.delete(f"shipped:{message_id}")
        raise self.retry(exc=error)
""",
        good="""\
import redis
import requests
from celery import shared_task

cache = redis.Redis()


@shared_task(bind=True, max_retries=10, default_retry_delay=3600)
def ship(self, message_id, order):
    if not cache.set(f"shipped:{message_id}", 1, nx=True, ex=1296000):
        return
    try:
        requests.post("https://carrier.example/parcels", json=order, timeout=10)
    except requests.RequestException as error:
        cache.delete(f"shipped:{message_id}")  # else the retry is dropped
        raise self.retry(exc=error)
""",
        modes="L or T with `retention=` above the redelivery window; `effectonce doctor` checks it against the broker.",
    ),
]
