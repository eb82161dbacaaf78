# ruff: noqa
# expect file: EO201
import asyncio
import json

import asyncpg
import nats

running = set()


async def rename(pool, data):
    await pool.execute("UPDATE users SET name = $2 WHERE id = $1", data["id"], data["name"])


async def main():
    pool = await asyncpg.create_pool()
    js = (await nats.connect()).jetstream()

    async def cb(msg):
        task = asyncio.create_task(rename(pool, json.loads(msg.data)))
        running.add(task)
        task.add_done_callback(running.discard)
        await msg.ack()

    await js.subscribe("names", cb=cb, manual_ack=True)
