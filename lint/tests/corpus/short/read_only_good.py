# ruff: noqa
# expect file: clean
import json

import psycopg
import requests
from kafka import KafkaConsumer


def main():
    for record in KafkaConsumer("q", group_id="q"):
        query = json.loads(record.value)
        with psycopg.connect("dbname=x") as conn:
            rows = conn.execute("SELECT * FROM users WHERE id = %s", (query["id"],)).fetchall()
        print(rows, requests.get("https://x.example/users", timeout=3).json())
