# ruff: noqa
# expect file: clean
import functools
import json
import queue
import threading

import pika
import psycopg2

deliveries = queue.Queue()
db = psycopg2.connect("dbname=shop")


def work(connection):
    while True:
        channel, tag, body = deliveries.get()
        data = json.loads(body)
        with db, db.cursor() as cur:
            cur.execute("UPDATE users SET name = %s WHERE id = %s", (data["name"], data["id"]))
        connection.add_callback_threadsafe(functools.partial(channel.basic_ack, tag))


def on_message(channel, method, properties, body):
    deliveries.put((channel, method.delivery_tag, body))


connection = pika.BlockingConnection()
threading.Thread(target=work, args=(connection,)).start()
channel = connection.channel()
channel.basic_consume(queue="names", on_message_callback=on_message)
