# ruff: noqa
# expect file: EO402
import json

import psycopg
from kafka import KafkaConsumer


class Stock:
    def __init__(self, conn):
        self.conn = conn

    def undo_reserve(self, sku, n):
        with self.conn.transaction():
            self.conn.execute("UPDATE stock SET free = free + %s WHERE sku = %s", (n, sku))


class Coordinator:
    def __init__(self, stock):
        self.steps = {"reserve": stock.undo_reserve}

    def fail(self, saga):
        for step in reversed(saga["steps"]):
            self.steps[step["name"]](step["sku"], step["n"])


def main():
    consumer = KafkaConsumer("saga.failed", group_id="undo", enable_auto_commit=False)
    coordinator = Coordinator(Stock(psycopg.connect("dbname=x")))
    for record in consumer:
        coordinator.fail(json.loads(record.value))
        consumer.commit()
