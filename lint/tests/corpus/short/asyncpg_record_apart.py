# ruff: noqa
# expect file: EO102, EO103
import json, asyncpg
from aiokafka import AIOKafkaConsumer
async def run(pool: asyncpg.Pool):
    consumer = AIOKafkaConsumer("t", group_id="g", enable_auto_commit=False)
    await consumer.start()
    async for m in consumer:
        e = json.loads(m.value)
        async with pool.acquire() as c:
            if await c.fetchval("SELECT 1 FROM processed WHERE id=$1", e["id"]):
                continue
            async with c.transaction():
                await c.execute("UPDATE accounts SET balance = balance + $1 WHERE id = $2", e["n"], e["a"])
            await c.execute("INSERT INTO processed (id) VALUES ($1)", e["id"])
        await consumer.commit()
