"""Rules about the ack: it is a promise that the work is done."""

from __future__ import annotations

from . import Rule

RULES = [
    Rule(
        id="EO201",
        name="ack-before-work",
        severity="warning",
        confidence=0.9,
        summary="The message is acked before the work is done, so a crash loses it.",
        why="""\
The broker forgets a message that was acked. Auto-ack, `acks_late=False` and auto-committed offsets ack it on delivery:
if the worker dies in the middle of the work, the broker does not deliver it again. The same happens if you put the
message into a queue in memory, or pass it to a task, a thread, an executor or `BackgroundTasks`, and ack it (for a
webhook: answer) before the work is done. Ack when the work is done, and make the consumer survive the redelivery that
this allows. You can also store the message first, in a table or in another broker's queue, and then ack.""",
        bad="""\
import json

import pika
import psycopg2

conn = psycopg2.connect("dbname=shop")


def on_order(channel, method, properties, body):
    order = json.loads(body)
    with conn, conn.cursor() as cur:
        cur.execute("UPDATE orders SET status = 'paid' WHERE id = %s", (order["id"],))


channel = pika.BlockingConnection().channel()
channel.basic_consume(queue="orders", on_message_callback=on_order, auto_ack=True)
""",
        good="""\
import json

import pika
import psycopg2

conn = psycopg2.connect("dbname=shop")


def on_order(channel, method, properties, body):
    order = json.loads(body)
    with conn, conn.cursor() as cur:
        cur.execute("UPDATE orders SET status = 'paid' WHERE id = %s", (order["id"],))
    channel.basic_ack(method.delivery_tag)


channel = pika.BlockingConnection().channel()
channel.basic_consume(queue="orders", on_message_callback=on_order, auto_ack=False)
""",
        modes="Any; `eo.Worker` acks after the record, never before.",
        fix="Reverses `auto_ack=True`, `no_ack=True`, `acks_late=False` and `enable.auto.commit`.",
    ),
    Rule(
        id="EO202",
        name="swallowed-exception",
        severity="warning",
        confidence=0.6,
        summary="An exception of the work is caught and only logged, and then the message is acked.",
        why="""\
The handler returns as if all went well, so the broker removes the message. But the work was not done, and nothing will
try it again. Let the exception through, nack the message, or put it where an operator will see it.""",
        bad="""\
import logging

import psycopg2
from celery import shared_task

conn = psycopg2.connect("dbname=shop")


@shared_task(acks_late=True)
def pay(order_id):
    try:
        with conn, conn.cursor() as cur:
            cur.execute("UPDATE orders SET status = 'paid' WHERE id = %s", (order_id,))
    except Exception:
        logging.exception("could not pay %s", order_id)
""",
        good="""\
import logging

import psycopg2
from celery import shared_task

conn = psycopg2.connect("dbname=shop")


@shared_task(acks_late=True)
def pay(order_id):
    try:
        with conn, conn.cursor() as cur:
            cur.execute("UPDATE orders SET status = 'paid' WHERE id = %s", (order_id,))
    except Exception:
        logging.exception("could not pay %s", order_id)
        raise
""",
        modes="Any; `eo.Worker` retries what raises and parks what keeps raising.",
    ),
]
