# ruff: noqa
# expect file: EO301
from aiokafka import AIOKafkaConsumer
import asyncpg, json
async def consume():
    consumer = AIOKafkaConsumer("t", group_id="g", enable_auto_commit=False)
    await consumer.start()
    pool = await asyncpg.create_pool()
    async for msg in consumer:
        async with pool.acquire() as c, c.transaction():
            res = await c.execute("INSERT INTO processed (k) VALUES ($1) ON CONFLICT DO NOTHING", f"{msg.topic}-{msg.partition}-{msg.offset}")
            if res == "INSERT 0 0":
                continue
            await c.execute("INSERT INTO events (body) VALUES ($1)", msg.value)
        await consumer.commit()
