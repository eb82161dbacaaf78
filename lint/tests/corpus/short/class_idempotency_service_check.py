# ruff: noqa
# expect file: EO101, EO103
import json

import psycopg
import requests
from aiokafka import AIOKafkaConsumer


class IdempotencyService:
    def __init__(self, conn: psycopg.Connection) -> None:
        self.conn = conn

    def is_processed(self, event_id: str) -> bool:
        return self.conn.execute("SELECT 1 FROM idempotency WHERE event_id = %s", (event_id,)).fetchone() is not None

    def mark(self, event_id: str) -> None:
        self.conn.execute("INSERT INTO idempotency (event_id) VALUES (%s) ON CONFLICT DO NOTHING", (event_id,))
        self.conn.commit()


class Consumer:
    def __init__(self, kafka: AIOKafkaConsumer, idem: IdempotencyService) -> None:
        self.kafka = kafka
        self.idem = idem

    async def run(self) -> None:
        async for record in self.kafka:
            event = json.loads(record.value)
            if not self.idem.is_processed(event["id"]):
                requests.post("https://erp.example/x", json=event, timeout=5)
                self.idem.mark(event["id"])
            await self.kafka.commit()
