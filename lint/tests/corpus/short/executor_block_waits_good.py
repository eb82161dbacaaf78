# ruff: noqa
# expect file: clean
import json
from concurrent.futures import ThreadPoolExecutor

import psycopg_pool
from kafka import KafkaConsumer

pool = psycopg_pool.ConnectionPool("dbname=shop")


def rename(data):
    with pool.connection() as conn:
        conn.execute("UPDATE users SET name = %s WHERE id = %s", (data["name"], data["id"]))


consumer = KafkaConsumer("names", group_id="names", enable_auto_commit=False)
while True:
    with ThreadPoolExecutor(8) as executor:
        for records in consumer.poll(timeout_ms=500).values():
            for record in records:
                executor.submit(rename, json.loads(record.value))
    consumer.commit()
