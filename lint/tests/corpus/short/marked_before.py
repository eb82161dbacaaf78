# ruff: noqa
# expect file: EO104
import json

import psycopg2
import requests
from kafka import KafkaConsumer

conn = psycopg2.connect("dbname=app")
consumer = KafkaConsumer("orders", group_id="erp", enable_auto_commit=False)


def already_done(event_id):
    with conn, conn.cursor() as cur:
        cur.execute("INSERT INTO done (event_id) VALUES (%s) ON CONFLICT DO NOTHING", (event_id,))
        return cur.rowcount == 0


for record in consumer:
    event = json.loads(record.value)
    if already_done(event["event_id"]):
        consumer.commit()
        continue
    requests.post("https://erp.example/orders", json=event, timeout=10).raise_for_status()
    consumer.commit()
