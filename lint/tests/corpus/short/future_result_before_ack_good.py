# ruff: noqa
# expect file: clean
import json
from concurrent.futures import ThreadPoolExecutor

import pika
import psycopg2

conn = psycopg2.connect("dbname=shop")
executor = ThreadPoolExecutor(4)


def rename(data):
    with conn, conn.cursor() as cur:
        cur.execute("UPDATE users SET name = %s WHERE id = %s", (data["name"], data["id"]))


def on_message(channel, method, properties, body):
    future = executor.submit(rename, json.loads(body))
    future.result(timeout=30)
    channel.basic_ack(method.delivery_tag)


channel = pika.BlockingConnection().channel()
channel.basic_consume(queue="names", on_message_callback=on_message)
