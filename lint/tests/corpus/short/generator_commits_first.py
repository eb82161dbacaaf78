# ruff: noqa
# expect file: EO201
import json

import psycopg
from kafka import KafkaConsumer


class Source:
    def __init__(self):
        self.consumer = KafkaConsumer("orders", group_id="pack", enable_auto_commit=False)

    def __iter__(self):
        for record in self.consumer:
            self.consumer.commit()
            yield json.loads(record.value)


def main():
    for order in Source():
        with psycopg.connect("dbname=x") as conn:
            conn.execute("UPDATE orders SET status = 'packed' WHERE id = %s", (order["id"],))
