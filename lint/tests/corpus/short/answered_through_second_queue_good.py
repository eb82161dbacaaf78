# ruff: noqa
# expect file: clean
import json
import queue
import threading

import pika
import psycopg2

todo, done = queue.Queue(), queue.Queue()
inputs = queue.Queue()
results = queue.Queue()
conn = psycopg2.connect("dbname=shop")


def work():
    while True:
        data = inputs.get()
        with conn, conn.cursor() as cur:
            cur.execute("UPDATE users SET name = %s WHERE id = %s", (data["name"], data["id"]))
        results.put(data["id"])


def on_message(channel, method, properties, body):
    inputs.put(json.loads(body))
    results.get(timeout=30)
    channel.basic_ack(method.delivery_tag)


threading.Thread(target=work).start()
channel = pika.BlockingConnection().channel()
channel.basic_consume(queue="names", on_message_callback=on_message)
