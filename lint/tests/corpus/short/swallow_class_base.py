# ruff: noqa
# expect file: EO202
import logging

import psycopg
from confluent_kafka import Consumer
import json

log = logging.getLogger(__name__)


class Loop:
    def run(self):
        consumer = Consumer({"bootstrap.servers": "k", "group.id": "g", "enable.auto.commit": False})
        consumer.subscribe(["names"])
        while True:
            message = consumer.poll(1.0)
            if message is None or message.error():
                continue
            try:
                self.handle(json.loads(message.value()))
            except Exception as e:
                log.warning("skipped %s", e)
            consumer.commit(message=message)

    def handle(self, event):
        raise NotImplementedError


class Names(Loop):
    def handle(self, event):
        with psycopg.connect("dbname=x") as conn:
            conn.execute("UPDATE users SET name = %s WHERE id = %s", (event["name"], event["id"]))


Names().run()
