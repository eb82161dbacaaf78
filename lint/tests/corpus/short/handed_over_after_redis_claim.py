# ruff: noqa
# expect file: EO201
import asyncio
import json

import asyncpg
import nats
import redis.asyncio as redis

cache = redis.Redis()
backlog = asyncio.Queue()


async def drain(pool: asyncpg.Pool):
    while True:
        data = await backlog.get()
        await pool.execute("UPDATE users SET name = $2 WHERE id = $1", data["id"], data["name"])


async def main():
    pool = await asyncpg.create_pool()
    js = (await nats.connect()).jetstream()

    async def cb(msg):
        data = json.loads(msg.data)
        if not await cache.set(f"seen:{data['event_id']}", 1, nx=True, ex=1_300_000):
            await msg.ack()
            return
        await backlog.put(data)
        await msg.ack()

    await js.subscribe("names", cb=cb, manual_ack=True)
    await drain(pool)
