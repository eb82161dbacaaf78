# ruff: noqa
# expect file: clean
import json

import psycopg
from kafka import KafkaConsumer


def apply(conn, event):
    with conn.transaction():
        cur = conn.execute(
            "UPDATE accounts SET balance = balance + %s, version = %s WHERE id = %s AND version = %s",
            (event["cents"], event["version"], event["account"], event["version"] - 1),
        )
        if cur.rowcount == 0:
            return False
    return True


def main():
    conn = psycopg.connect("dbname=x")
    consumer = KafkaConsumer("money", group_id="m", enable_auto_commit=False)
    for record in consumer:
        apply(conn, json.loads(record.value))
        consumer.commit()
