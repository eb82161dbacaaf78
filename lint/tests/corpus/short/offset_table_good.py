# ruff: noqa
# expect file: clean
import json

import psycopg
from confluent_kafka import Consumer


def main():
    consumer = Consumer({"bootstrap.servers": "k", "group.id": "g", "enable.auto.commit": False})
    consumer.subscribe(["money"])
    conn = psycopg.connect("dbname=x")
    while True:
        message = consumer.poll(1)
        if message is None or message.error():
            continue
        event = json.loads(message.value())
        with conn.transaction():
            moved = conn.execute(
                "UPDATE offsets SET position = %s WHERE topic = %s AND part = %s AND position < %s",
                (message.offset(), message.topic(), message.partition(), message.offset()),
            )
            if moved.rowcount == 1:
                conn.execute("UPDATE accounts SET cents = cents + %s WHERE id = %s", (event["cents"], event["account"]))
        consumer.commit(message)
