# ruff: noqa
# expect file: clean
from confluent_kafka import Consumer, Producer
c = Consumer({"group.id": "g", "enable.auto.commit": False, "isolation.level": "read_committed"})
p = Producer({"transactional.id": "t"})
p.init_transactions()
c.subscribe(["a"])
while True:
    m = c.poll(1.0)
    if m is None:
        continue
    p.begin_transaction()
    p.produce("b", m.value())
    p.send_offsets_to_transaction(c.position(c.assignment()), c.consumer_group_metadata())
    p.commit_transaction()
