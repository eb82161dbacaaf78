# ruff: noqa
# expect file: clean
import json

import psycopg
from psycopg import errors
from kafka import KafkaConsumer


class EventStore:
    def __init__(self, conn):
        self.conn = conn

    def append(self, event):
        try:
            with self.conn.transaction():
                self.conn.execute(
                    "INSERT INTO events (aggregate, version, body) VALUES (%s, %s, %s)",
                    (event["aggregate"], event["version"], json.dumps(event)),
                )
        except errors.UniqueViolation:
            return


def main():
    store = EventStore(psycopg.connect("dbname=x"))
    consumer = KafkaConsumer("events", group_id="e", enable_auto_commit=False)
    for record in consumer:
        store.append(json.loads(record.value))
        consumer.commit()
