# ruff: noqa
# expect file: clean
import asyncio
import json

import asyncpg
import nats

tokens = asyncio.Queue()


async def refill():
    while True:
        tokens.put_nowait(None)
        await asyncio.sleep(0.1)


async def main():
    pool = await asyncpg.create_pool()
    js = (await nats.connect()).jetstream()
    asyncio.create_task(refill())

    async def cb(msg):
        await tokens.get()
        data = json.loads(msg.data)
        await pool.execute("UPDATE users SET name = $2 WHERE id = $1", data["id"], data["name"])
        await msg.ack()

    await js.subscribe("names", cb=cb, manual_ack=True)
