# ruff: noqa
# expect file: clean
import json

import pika
import psycopg

conn = psycopg.connect("dbname=shop")


def on_message(channel, method, properties, body):
    data = json.loads(body)
    cursor = conn.execute("UPDATE users SET name = %s WHERE id = %s", (data["name"], data["id"]))
    conn.commit()
    channel.basic_ack(method.delivery_tag)


channel = pika.BlockingConnection().channel()
channel.basic_consume(queue="names", on_message_callback=on_message)
