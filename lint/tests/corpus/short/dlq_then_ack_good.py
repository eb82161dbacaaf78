# ruff: noqa
# expect file: clean
import json
import logging

import psycopg
from confluent_kafka import Consumer, Producer

producer = Producer({"bootstrap.servers": "k"})


def park(message, error):
    producer.produce("names.dead", message.value(), headers={"error": str(error)})
    producer.flush()


def main():
    consumer = Consumer({"bootstrap.servers": "k", "group.id": "n", "enable.auto.commit": False})
    consumer.subscribe(["names"])
    while True:
        message = consumer.poll(1)
        if message is None or message.error():
            continue
        try:
            data = json.loads(message.value())
            with psycopg.connect("dbname=x") as conn:
                conn.execute("UPDATE users SET name = %s WHERE id = %s", (data["name"], data["id"]))
        except Exception as error:
            logging.exception("parked")
            park(message, error)
        consumer.commit(message)
