# ruff: noqa
# expect file: EO104
from confluent_kafka import Consumer
import json, requests
seen = set()
c = Consumer({"bootstrap.servers": "b", "group.id": "g", "enable.auto.commit": False})
c.subscribe(["t"])
while True:
    m = c.poll(1)
    if m is None: continue
    e = json.loads(m.value())
    if e["id"] in seen:
        c.commit(m); continue
    seen.add(e["id"])
    requests.post("https://hooks.example/notify", json=e)
    c.commit(m)
