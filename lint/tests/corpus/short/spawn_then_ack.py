# ruff: noqa
# expect file: EO201
import asyncio
import json

import nats
import asyncpg


async def work(pool, data):
    await pool.execute("UPDATE users SET name = $2 WHERE id = $1", data["id"], data["name"])


async def main():
    pool = await asyncpg.create_pool()
    js = (await nats.connect()).jetstream()

    async def cb(msg):
        asyncio.create_task(work(pool, json.loads(msg.data)))
        await msg.ack()

    await js.subscribe("names", cb=cb, manual_ack=True)
