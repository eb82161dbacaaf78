# ruff: noqa
# expect file: clean
import json

import pika
import psycopg2

conn = psycopg2.connect("dbname=shop")


class Names:
    def submit(self, data):
        with conn, conn.cursor() as cur:
            cur.execute("UPDATE users SET name = %s WHERE id = %s", (data["name"], data["id"]))


names = Names()


def on_message(channel, method, properties, body):
    names.submit(json.loads(body))
    channel.basic_ack(method.delivery_tag)


channel = pika.BlockingConnection().channel()
channel.basic_consume(queue="names", on_message_callback=on_message)
