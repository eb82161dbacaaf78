# ruff: noqa
# expect file: clean
import json
import logging

import pika
import psycopg


def on_name(ch, method, props, body):
    try:
        data = json.loads(body)
    except json.JSONDecodeError:
        logging.warning("not json")
        ch.basic_reject(method.delivery_tag, requeue=False)
        return
    with psycopg.connect("dbname=x") as conn:
        conn.execute("UPDATE users SET name = %s WHERE id = %s", (data["name"], data["id"]))
    ch.basic_ack(method.delivery_tag)


channel = pika.BlockingConnection().channel()
channel.basic_consume("names", on_name)
