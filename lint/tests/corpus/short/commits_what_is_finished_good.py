# ruff: noqa
# expect file: clean
import asyncio
import json

import asyncpg
from aiokafka import AIOKafkaConsumer, TopicPartition


class Reader:
    def __init__(self, pool: asyncpg.Pool) -> None:
        self.pool = pool
        self.pending = asyncio.Queue(maxsize=500)
        self.finished: dict[TopicPartition, int] = {}

    async def work(self) -> None:
        while True:
            record = await self.pending.get()
            data = json.loads(record.value)
            await self.pool.execute("UPDATE users SET name = $2 WHERE id = $1", data["id"], data["name"])
            self.finished[TopicPartition(record.topic, record.partition)] = record.offset + 1

    async def read(self) -> None:
        consumer = AIOKafkaConsumer("names", group_id="names", enable_auto_commit=False)
        await consumer.start()
        async for record in consumer:
            await self.pending.put(record)
            if self.finished:
                await consumer.commit(self.finished)
