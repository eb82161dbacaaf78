# ruff: noqa
# expect file: clean
import json
from contextlib import asynccontextmanager

import asyncpg
from aiokafka import AIOKafkaConsumer


@asynccontextmanager
async def fresh(pool, key):
    async with pool.acquire() as conn, conn.transaction():
        new = await conn.fetchval("INSERT INTO inbox (id) VALUES ($1) ON CONFLICT DO NOTHING RETURNING id", key)
        yield conn if new else None


async def main():
    pool = await asyncpg.create_pool()
    consumer = AIOKafkaConsumer("likes", group_id="l", enable_auto_commit=False)
    async with consumer:
        async for record in consumer:
            like = json.loads(record.value)
            async with fresh(pool, like["id"]) as conn:
                if conn is not None:
                    await conn.execute("UPDATE posts SET likes = likes + 1 WHERE id = $1", like["post"])
            await consumer.commit()
