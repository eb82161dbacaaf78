# ruff: noqa
# expect file: P11
import json

import psycopg
from confluent_kafka import Consumer


def main():
    consumer = Consumer({"bootstrap.servers": "k", "group.id": "c", "enable.auto.commit": False})
    consumer.subscribe(["clicks"])
    with psycopg.connect("dbname=x") as conn:
        while True:
            messages = consumer.consume(500, timeout=1.0)
            with conn.cursor() as cur:
                with cur.copy("COPY clicks (page, at) FROM STDIN") as copy:
                    for message in messages:
                        click = json.loads(message.value())
                        copy.write_row((click["page"], click["at"]))
            conn.commit()
            consumer.commit()
