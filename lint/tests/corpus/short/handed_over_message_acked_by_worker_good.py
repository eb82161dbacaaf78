# ruff: noqa
# expect file: clean
import asyncio
import json

import asyncpg
import nats


async def worker(messages: asyncio.Queue, pool: asyncpg.Pool):
    while True:
        msg = await messages.get()
        data = json.loads(msg.data)
        await pool.execute("UPDATE users SET name = $2 WHERE id = $1", data["id"], data["name"])
        await msg.ack()


async def main():
    messages = asyncio.Queue(maxsize=100)
    pool = await asyncpg.create_pool()
    workers = [asyncio.create_task(worker(messages, pool)) for _ in range(8)]
    js = (await nats.connect()).jetstream()

    async def cb(msg):
        await messages.put(msg)

    await js.subscribe("names", cb=cb, manual_ack=True)
    await asyncio.gather(*workers)
