# ruff: noqa
# expect file: clean
import asyncio
import json

import asyncpg
import nats

requests = asyncio.Queue()


async def writer(pool: asyncpg.Pool):
    while True:
        data, done = await requests.get()
        await pool.execute("UPDATE users SET name = $2 WHERE id = $1", data["id"], data["name"])
        done.set_result(None)


async def main():
    pool = await asyncpg.create_pool()
    js = (await nats.connect()).jetstream()

    async def cb(msg):
        done = asyncio.get_running_loop().create_future()
        await requests.put((json.loads(msg.data), done))
        await done
        await msg.ack()

    await js.subscribe("names", cb=cb, manual_ack=True)
    await writer(pool)
