# ruff: noqa
# expect file: P11
import json

import pika
import psycopg


class Handler:
    def __init__(self):
        self.conn = psycopg.connect("dbname=x")

    def handle(self, ch, method, props, body):
        event = json.loads(body)
        getattr(self, "on_" + event["type"])(event)
        ch.basic_ack(delivery_tag=method.delivery_tag)

    def on_liked(self, event):
        with self.conn.transaction():
            self.conn.execute("UPDATE posts SET likes = likes + 1 WHERE id = %s", (event["post"],))


channel = pika.BlockingConnection().channel()
channel.basic_consume(queue="posts", on_message_callback=Handler().handle)
