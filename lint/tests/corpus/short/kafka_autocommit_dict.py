# ruff: noqa
# expect file: EO201
import json

import psycopg
from confluent_kafka import Consumer

BASE = {"bootstrap.servers": "k", "group.id": "names"}


def settings(**more):
    return {**BASE, "enable.auto.commit": True, **more}


def main():
    consumer = Consumer(settings())
    consumer.subscribe(["names"])
    while True:
        m = consumer.poll(1)
        if m is None or m.error():
            continue
        data = json.loads(m.value())
        with psycopg.connect("dbname=x") as conn:
            conn.execute("UPDATE users SET name = %s WHERE id = %s", (data["name"], data["id"]))
