# ruff: noqa
# expect file: EO202
import functools
import json
import logging

import pika
import psycopg

log = logging.getLogger(__name__)


def handle(conn, channel, method, properties, body):
    try:
        with conn.transaction():
            conn.execute("UPDATE seats SET owner = %s WHERE id = %s", (json.loads(body)["owner"], json.loads(body)["id"]))
    except Exception as error:
        log.error("failed: %s", error)
    finally:
        channel.basic_ack(method.delivery_tag)


channel = pika.BlockingConnection().channel()
channel.basic_consume("seats", functools.partial(handle, psycopg.connect("dbname=x")))
