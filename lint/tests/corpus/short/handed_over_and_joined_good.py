# ruff: noqa
# expect file: clean
import json
import queue
import threading

import psycopg2
from confluent_kafka import Consumer

batch = queue.Queue()
db = psycopg2.connect("dbname=shop")


def work():
    while True:
        data = batch.get()
        with db, db.cursor() as cur:
            cur.execute("UPDATE users SET name = %s WHERE id = %s", (data["name"], data["id"]))
        batch.task_done()


def main():
    threading.Thread(target=work, daemon=True).start()
    consumer = Consumer({"group.id": "names", "enable.auto.commit": False})
    consumer.subscribe(["names"])
    while True:
        for message in consumer.consume(100, timeout=1):
            batch.put(json.loads(message.value()))
        batch.join()
        consumer.commit()
