# ruff: noqa
"""Callbacks on a blocking channel."""

import functools
import json
import logging
import uuid

import pika
import psycopg2
import requests
from psycopg2.errors import UniqueViolation

log = logging.getLogger(__name__)
db = psycopg2.connect("dbname=shop")


def transfer(ch, method, properties, body):  # expect: P11
    order = json.loads(body)
    with db, db.cursor() as cur:
        cur.execute(
            """
            UPDATE accounts
               SET balance = balance - %(amount)s
             WHERE id = %(account)s
            """,
            order,
        )
    ch.basic_ack(delivery_tag=method.delivery_tag)


def insert_first(ch, method, properties, body):  # expect: clean
    order = json.loads(body)
    try:
        with db, db.cursor() as cur:
            cur.execute("INSERT INTO processed_messages (message_id) VALUES (%s)", (properties.message_id,))
            cur.execute("UPDATE accounts SET balance = balance - %s WHERE id = %s", (order["amount"], order["account"]))
    except UniqueViolation:
        log.info("duplicate %s", properties.message_id)
    ch.basic_ack(delivery_tag=method.delivery_tag)


def on_conflict(ch, method, properties, body):  # expect: clean
    order = json.loads(body)
    cur = db.cursor()
    cur.execute("INSERT INTO inbox (id) VALUES (%s) ON CONFLICT (id) DO NOTHING", (order["message_id"],))
    if cur.rowcount == 1:
        cur.execute("INSERT INTO ledger (account, amount) VALUES (%s, %s)", (order["account"], order["amount"]))
    db.commit()
    ch.basic_ack(method.delivery_tag)


def on_conflict_ignored(ch, method, properties, body):  # expect: P11
    """The answer of the database is thrown away, so everybody is the first."""
    order = json.loads(body)
    cur = db.cursor()
    cur.execute("INSERT INTO inbox (id) VALUES (%s) ON CONFLICT (id) DO NOTHING", (order["message_id"],))
    cur.execute("INSERT INTO ledger (account, amount) VALUES (%s, %s)", (order["account"], order["amount"]))
    db.commit()
    ch.basic_ack(method.delivery_tag)


def select_then_insert_same_transaction(ch, method, properties, body):  # expect: clean
    """The unique row at the end rolls everything back."""
    order = json.loads(body)
    with db, db.cursor() as cur:
        cur.execute("SELECT 1 FROM processed_messages WHERE message_id = %s", (properties.message_id,))
        if cur.fetchone() is None:
            cur.execute("UPDATE accounts SET balance = balance + %s WHERE id = %s", (order["amount"], order["account"]))
            cur.execute("INSERT INTO processed_messages (message_id) VALUES (%s)", (properties.message_id,))
    ch.basic_ack(delivery_tag=method.delivery_tag)


def select_then_call(ch, method, properties, body):  # expect: EO101, EO103
    with db.cursor() as cur:
        cur.execute("SELECT 1 FROM processed_messages WHERE message_id = %s", (properties.message_id,))
        if cur.fetchone():
            ch.basic_ack(delivery_tag=method.delivery_tag)
            return
        requests.post("https://erp.example/orders", data=body, timeout=5)
        cur.execute("INSERT INTO processed_messages (message_id) VALUES (%s)", (properties.message_id,))
        db.commit()
    ch.basic_ack(delivery_tag=method.delivery_tag)


def record_in_another_transaction(ch, method, properties, body):  # expect: EO102, EO103
    order = json.loads(body)
    with db.cursor() as cur:
        cur.execute("SELECT 1 FROM processed_messages WHERE message_id = %s", (properties.message_id,))
        if cur.fetchone():
            ch.basic_ack(delivery_tag=method.delivery_tag)
            return
        cur.execute("UPDATE accounts SET balance = balance + %s WHERE id = %s", (order["amount"], order["account"]))
        db.commit()
        cur.execute("INSERT INTO processed_messages (message_id) VALUES (%s)", (properties.message_id,))
        db.commit()
    ch.basic_ack(delivery_tag=method.delivery_tag)


def keyed_by_delivery_tag(ch, method, properties, body):  # expect: EO301
    with db, db.cursor() as cur:
        cur.execute("INSERT INTO processed_messages (message_id) VALUES (%s)", (method.delivery_tag,))
        cur.execute("UPDATE stats SET orders = orders + 1")
    ch.basic_ack(delivery_tag=method.delivery_tag)


def acks_first(ch, method, properties, body):  # expect: EO201
    ch.basic_ack(delivery_tag=method.delivery_tag)
    with db, db.cursor() as cur:
        cur.execute("UPDATE orders SET state = 'seen' WHERE id = %s", (json.loads(body)["id"],))


def acks_in_finally(ch, method, properties, body):  # expect: EO202
    try:
        with db, db.cursor() as cur:
            cur.execute("UPDATE orders SET state = 'seen' WHERE id = %s", (json.loads(body)["id"],))
    except Exception:
        log.exception("failed")
    finally:
        ch.basic_ack(delivery_tag=method.delivery_tag)


def nacks_on_error(ch, method, properties, body):  # expect: clean
    try:
        with db, db.cursor() as cur:
            cur.execute("UPDATE orders SET state = 'seen' WHERE id = %s", (json.loads(body)["id"],))
    except Exception:
        log.exception("failed")
        ch.basic_nack(delivery_tag=method.delivery_tag, requeue=True)
    else:
        ch.basic_ack(delivery_tag=method.delivery_tag)


def auto_acked(ch, method, properties, body):  # expect: EO201
    with db, db.cursor() as cur:
        cur.execute("UPDATE orders SET state = 'seen' WHERE id = %s", (json.loads(body)["id"],))


def either_or(ch, method, properties, body):  # expect: clean
    """The ack of one way is not before the work of the other."""
    event = json.loads(body)
    if event["type"] == "ping":
        ch.basic_ack(method.delivery_tag)
    else:
        with db, db.cursor() as cur:
            cur.execute("UPDATE orders SET state = 'seen' WHERE id = %s", (event["id"],))
        ch.basic_ack(method.delivery_tag)


def skipped(ch, method, body):
    if not body:
        ch.basic_ack(method.delivery_tag)
        return True
    return False


def skips_what_is_empty(ch, method, properties, body):  # expect: clean
    if skipped(ch, method, body):
        return
    with db, db.cursor() as cur:
        cur.execute("UPDATE orders SET state = 'seen' WHERE id = %s", (json.loads(body)["id"],))
    ch.basic_ack(method.delivery_tag)


def falls_through_a_conflict(ch, method, properties, body):  # expect: P11
    """The conflict is noticed, and then nobody minds."""
    order = json.loads(body)
    try:
        with db, db.cursor() as cur:
            cur.execute("INSERT INTO processed_messages (message_id) VALUES (%s)", (properties.message_id,))
    except UniqueViolation:
        log.info("seen before")
    requests.post("https://erp.example/orders", json=order, timeout=5)
    ch.basic_ack(method.delivery_tag)


def made_up_row_id(ch, method, properties, body):  # expect: P11
    """A primary key of one's own making keeps nothing unique."""
    order = json.loads(body)
    with db, db.cursor() as cur:
        cur.execute("INSERT INTO payments (id, amount) VALUES (%s, %s)", (str(uuid.uuid4()), order["amount"]))
    ch.basic_ack(method.delivery_tag)


def row_id_of_the_message(ch, method, properties, body):  # expect: clean
    order = json.loads(body)
    with db, db.cursor() as cur:
        cur.execute("INSERT INTO payments (id, amount) VALUES (%s, %s)", (order["payment_id"], order["amount"]))
    ch.basic_ack(method.delivery_tag)


def prints(ch, method, properties, body):  # expect: clean
    """Auto-ack is fine where nothing can be lost."""
    print(f" [x] Received {body.decode()}")


def with_context(rate, ch, method, properties, body):  # expect: P11
    requests.post("https://rates.example/convert-and-book", json={"rate": rate, "order": json.loads(body)}, timeout=3)
    ch.basic_ack(delivery_tag=method.delivery_tag)


def main():
    connection = pika.BlockingConnection(pika.ConnectionParameters("localhost"))
    channel = connection.channel()
    channel.queue_declare("transfers", durable=True)
    channel.basic_qos(prefetch_count=1)
    channel.basic_consume(queue="transfers", on_message_callback=transfer)
    channel.basic_consume("a", insert_first)
    channel.basic_consume("b", on_conflict)
    channel.basic_consume("c", on_conflict_ignored)
    channel.basic_consume("d", select_then_insert_same_transaction)
    channel.basic_consume("e", select_then_call)
    channel.basic_consume("f", record_in_another_transaction)
    channel.basic_consume("g", keyed_by_delivery_tag)
    channel.basic_consume("h", acks_first)
    channel.basic_consume("i", acks_in_finally)
    channel.basic_consume("j", nacks_on_error)
    channel.basic_consume(queue="k", on_message_callback=auto_acked, auto_ack=True)
    channel.basic_consume(queue="l", on_message_callback=prints, auto_ack=True)
    channel.basic_consume("m", functools.partial(with_context, 1.1))
    channel.basic_consume("n", either_or)
    channel.basic_consume("r", skips_what_is_empty)
    channel.basic_consume("o", falls_through_a_conflict)
    channel.basic_consume("p", made_up_row_id)
    channel.basic_consume("q", row_id_of_the_message)
    channel.start_consuming()


if __name__ == "__main__":
    main()
