# ruff: noqa
# expect file: clean
import json

import psycopg
import requests
from aiokafka import AIOKafkaConsumer


class Claims:
    def __init__(self, conn: psycopg.Connection) -> None:
        self.conn = conn

    def claim(self, event_id: str) -> bool:
        cur = self.conn.execute(
            "INSERT INTO claims (event_id, state) VALUES (%s, 'running') ON CONFLICT DO NOTHING", (event_id,)
        )
        self.conn.commit()
        return cur.rowcount == 1

    def done(self, event_id: str) -> None:
        self.conn.execute("UPDATE claims SET state = 'done' WHERE event_id = %s", (event_id,))
        self.conn.commit()

    def release(self, event_id: str) -> None:
        self.conn.execute("DELETE FROM claims WHERE event_id = %s", (event_id,))
        self.conn.commit()


class Consumer:
    def __init__(self, kafka: AIOKafkaConsumer, claims: Claims) -> None:
        self.kafka = kafka
        self.claims = claims

    async def run(self) -> None:
        async for record in self.kafka:
            event = json.loads(record.value)
            if self.claims.claim(event["id"]):
                try:
                    requests.post("https://erp.example/x", json=event, timeout=5)
                except Exception:
                    self.claims.release(event["id"])
                    raise
                self.claims.done(event["id"])
            await self.kafka.commit()
