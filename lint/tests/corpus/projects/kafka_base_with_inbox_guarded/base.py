# ruff: noqa
import json
from abc import ABC, abstractmethod
from confluent_kafka import Consumer
class IdempotentConsumer(ABC):
    def __init__(self, conf, topic, pool):
        self.consumer = Consumer({**conf, "enable.auto.commit": False})
        self.consumer.subscribe([topic])
        self.pool = pool
    @abstractmethod
    def apply(self, conn, event): ...
    def run(self):
        while True:
            msg = self.consumer.poll(1.0)
            if msg is None or msg.error():
                continue
            event = json.loads(msg.value())
            with self.pool.connection() as conn:
                with conn.transaction():
                    cur = conn.execute("INSERT INTO inbox (event_id) VALUES (%s) ON CONFLICT DO NOTHING", (event["id"],))
                    if cur.rowcount:
                        self.apply(conn, event)
            self.consumer.commit(msg)
