# ruff: noqa
"""Acks, swallowed errors, base classes."""

import logging

import psycopg2
import requests
from celery import Celery, Task
from celery_once import QueueOnce

app = Celery("worker")
log = logging.getLogger("worker")
conn = psycopg2.connect("dbname=shop")


@app.task(acks_late=False)
def early_ack(order_id):  # expect: EO201
    with conn, conn.cursor() as cur:
        cur.execute("UPDATE orders SET status = 'paid' WHERE id = %s", (order_id,))


@app.task(acks_late=True)
def late_ack(order_id):  # expect: clean
    with conn, conn.cursor() as cur:
        cur.execute("UPDATE orders SET status = 'paid' WHERE id = %s", (order_id,))


@app.task(acks_late=True)
def swallows(order_id):  # expect: EO202
    try:
        with conn, conn.cursor() as cur:
            cur.execute("UPDATE orders SET status = 'paid' WHERE id = %s", (order_id,))
    except Exception as error:
        log.error("order %s failed: %s", order_id, error)


@app.task(bind=True, acks_late=True)
def retries_instead(self, order_id):  # expect: clean
    try:
        with conn, conn.cursor() as cur:
            cur.execute("UPDATE orders SET status = 'paid' WHERE id = %s", (order_id,))
    except Exception as error:
        log.warning("order %s failed: %s", order_id, error)
        raise self.retry(exc=error)


@app.task(acks_late=True)
def narrow_except(order_id):  # expect: clean
    try:
        with conn, conn.cursor() as cur:
            cur.execute("UPDATE orders SET status = 'paid' WHERE id = %s", (order_id,))
    except psycopg2.errors.ForeignKeyViolation:
        log.warning("order %s is gone", order_id)


@app.task(acks_late=True)
def bare_except(order_id):  # expect: EO202
    try:
        with conn.cursor() as cur:
            cur.execute("DELETE FROM carts WHERE order_id = %s", (order_id,))
        conn.commit()
    except:  # noqa: E722
        pass


@app.task(acks_late=True)
def keeps_the_error(order_id):  # expect: clean
    error = None
    try:
        with conn, conn.cursor() as cur:
            cur.execute("UPDATE orders SET status = 'paid' WHERE id = %s", (order_id,))
    except Exception as caught:
        error = caught
    if error is not None:
        raise error


@app.task(base=QueueOnce, once={"keys": ["order_id"]})
def queued_once(order_id):  # expect: clean
    requests.post("https://erp.example/orders", json={"order": order_id}, timeout=5)


class Base(Task):
    abstract = True
    acks_late = True


class PushToErp(Base):
    name = "push-to-erp"

    def run(self, order_id):  # expect: P11
        requests.post("https://erp.example/orders", json={"order": order_id}, timeout=5)


class PutToErp(Base):
    name = "put-to-erp"

    def run(self, order_id):  # expect: clean
        requests.put(f"https://erp.example/orders/{order_id}", json={"state": "paid"}, timeout=5)


class EarlyPush(Task):
    acks_late = False

    def run(self, order_id):  # expect: EO201
        requests.put(f"https://erp.example/orders/{order_id}", json={"state": "paid"}, timeout=5)


app.register_task(PushToErp())
app.register_task(PutToErp())
app.register_task(EarlyPush())
