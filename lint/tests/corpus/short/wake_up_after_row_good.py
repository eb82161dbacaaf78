# ruff: noqa
# expect file: clean
import json
import queue
import threading

import pika
import psycopg2

wake = queue.Queue()
conn = psycopg2.connect("dbname=shop")


def work():
    db = psycopg2.connect("dbname=shop")
    while True:
        number = wake.get()
        with db, db.cursor() as cur:
            cur.execute("UPDATE jobs SET state = 'done' WHERE id = %s", (number,))


def on_message(channel, method, properties, body):
    job = json.loads(body)
    with conn, conn.cursor() as cur:
        cur.execute(
            "INSERT INTO jobs (id, body, state) VALUES (%s, %s, 'new') ON CONFLICT (id) DO NOTHING",
            (job["id"], body),
        )
    wake.put(job["id"])
    channel.basic_ack(method.delivery_tag)


threading.Thread(target=work).start()
channel = pika.BlockingConnection().channel()
channel.basic_consume(queue="jobs", on_message_callback=on_message)
