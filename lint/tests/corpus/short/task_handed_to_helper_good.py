# ruff: noqa
# expect file: clean
import asyncio
import json

import asyncpg
import nats


async def rename(pool, data):
    await pool.execute("UPDATE users SET name = $2 WHERE id = $1", data["id"], data["name"])


async def finished(task, seconds):
    async with asyncio.timeout(seconds):
        while not task.done():
            await asyncio.sleep(0.1)


async def main():
    pool = await asyncpg.create_pool()
    js = (await nats.connect()).jetstream()

    async def cb(msg):
        task = asyncio.create_task(rename(pool, json.loads(msg.data)))
        await finished(task, 30)
        await msg.ack()

    await js.subscribe("names", cb=cb, manual_ack=True)
