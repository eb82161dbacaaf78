# ruff: noqa
# expect file: P11
import json
import os

import psycopg
from confluent_kafka import Consumer


class Counter:
    def __init__(self, dsn):
        self.conn = psycopg.connect(dsn)

    def __call__(self, event):
        with self.conn.transaction():
            self.conn.execute("UPDATE songs SET plays = plays + 1 WHERE id = %s", (event["song"],))


HANDLERS = {"played": Counter(os.environ.get("DSN", ""))}


def main():
    consumer = Consumer({"bootstrap.servers": "k", "group.id": "plays", "enable.auto.commit": False})
    consumer.subscribe(["plays"])
    while True:
        message = consumer.poll(1)
        if message is None or message.error():
            continue
        event = json.loads(message.value())
        HANDLERS[event["type"]](event)
        consumer.commit(message)
