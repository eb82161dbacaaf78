# ruff: noqa
# expect file: clean
import asyncio
import json

import asyncpg
from aiokafka import AIOKafkaConsumer


async def rename(pool, data):
    await pool.execute("UPDATE users SET name = $2 WHERE id = $1", data["id"], data["name"])


async def main():
    pool = await asyncpg.create_pool()
    consumer = AIOKafkaConsumer("names", group_id="names", enable_auto_commit=False)
    await consumer.start()
    while True:
        tasks = set()
        for records in (await consumer.getmany(timeout_ms=500)).values():
            for record in records:
                task = asyncio.create_task(rename(pool, json.loads(record.value)))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)
        await consumer.commit()
