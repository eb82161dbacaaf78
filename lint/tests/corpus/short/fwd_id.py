# ruff: noqa
# expect file: clean
from confluent_kafka import Consumer, Producer
c = Consumer({"group.id": "g", "bootstrap.servers": "b", "enable.auto.commit": False})
p = Producer({"bootstrap.servers": "b"})
c.subscribe(["a"])
while True:
    m = c.poll(1.0)
    if m is None or m.error():
        continue
    print(m.value())
    c.commit(m)
