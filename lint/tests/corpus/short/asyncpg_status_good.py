# ruff: noqa
# expect file: clean
import json

import asyncpg
from aiokafka import AIOKafkaConsumer


async def main():
    pool = await asyncpg.create_pool()
    consumer = AIOKafkaConsumer("bids", group_id="b", enable_auto_commit=False)
    async with consumer:
        async for record in consumer:
            bid = json.loads(record.value)
            async with pool.acquire() as conn:
                async with conn.transaction():
                    status = await conn.execute("INSERT INTO inbox (id) VALUES ($1) ON CONFLICT DO NOTHING", bid["id"])
                    if status.endswith(" 1"):
                        await conn.execute("UPDATE lots SET bids = bids + 1 WHERE id = $1", bid["lot"])
            await consumer.commit()
