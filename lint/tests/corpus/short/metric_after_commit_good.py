# ruff: noqa
# expect file: clean
import json

import psycopg
import statsd
from kafka import KafkaConsumer

metrics = statsd.StatsClient()


def main():
    consumer = KafkaConsumer("names", group_id="n", enable_auto_commit=False)
    for record in consumer:
        data = json.loads(record.value)
        with psycopg.connect("dbname=x") as conn:
            conn.execute("UPDATE users SET name = %s WHERE id = %s", (data["name"], data["id"]))
        consumer.commit()
        metrics.incr("names.done")
