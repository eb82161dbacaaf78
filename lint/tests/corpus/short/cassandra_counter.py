# ruff: noqa
# expect file: P11
import json

from cassandra.cluster import Cluster
from confluent_kafka import Consumer

session = Cluster(["db"]).connect("stats")


def main():
    consumer = Consumer({"bootstrap.servers": "k", "group.id": "c", "enable.auto.commit": False})
    consumer.subscribe(["hits"])
    while True:
        m = consumer.poll(1)
        if m is None or m.error():
            continue
        hit = json.loads(m.value())
        session.execute("UPDATE hits SET n = n + 1 WHERE page = %s", (hit["page"],))
        consumer.commit(m)
