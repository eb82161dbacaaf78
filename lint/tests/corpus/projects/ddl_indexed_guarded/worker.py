# ruff: noqa
# expect file: clean
import json

import psycopg
from kafka import KafkaConsumer

from .schema import TABLES


def handle(conn, event):
    with conn.transaction():
        known = conn.execute("SELECT 1 FROM handled_messages WHERE message_id = %s", (event["id"],)).fetchone()
        if known:
            return
        conn.execute("UPDATE wallets SET coins = coins + %s WHERE id = %s", (event["coins"], event["wallet"]))
        conn.execute("INSERT INTO handled_messages (message_id) VALUES (%s)", (event["id"],))


def main():
    conn = psycopg.connect("dbname=x")
    conn.execute(TABLES)
    consumer = KafkaConsumer("wins", group_id="w", enable_auto_commit=False)
    for record in consumer:
        handle(conn, json.loads(record.value))
        consumer.commit()
