# ruff: noqa
# expect file: EO202
import json
import logging
from functools import wraps

import pika
import psycopg


def forgiving(function):
    @wraps(function)
    def call(ch, method, props, body):
        try:
            function(json.loads(body))
        except Exception:
            logging.exception("oops")
        ch.basic_ack(method.delivery_tag)

    return call


@forgiving
def rename(event):
    with psycopg.connect("dbname=x") as conn:
        conn.execute("UPDATE users SET name = %s WHERE id = %s", (event["name"], event["id"]))


channel = pika.BlockingConnection().channel()
channel.basic_consume("names", rename)
