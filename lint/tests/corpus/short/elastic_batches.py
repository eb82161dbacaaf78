# ruff: noqa
# expect file: clean
import json
from confluent_kafka import Consumer
from elasticsearch import Elasticsearch, helpers
es = Elasticsearch()
def run():
    c = Consumer({"bootstrap.servers": "b", "group.id": "indexer", "enable.auto.commit": False})
    c.subscribe(["products"])
    batch = []
    while True:
        m = c.poll(1.0)
        if m is None:
            continue
        p = json.loads(m.value())
        batch.append({"_index": "products", "_id": p["id"], "_source": p})
        if len(batch) >= 100:
            helpers.bulk(es, batch)
            batch.clear()
            c.commit()
