# ruff: noqa
# expect file: clean
import asyncio
import json

import asyncpg
import nats


async def rename(pool, user):
    await pool.execute("UPDATE users SET name = $2 WHERE id = $1", user["id"], user["name"])


async def main():
    pool = await asyncpg.create_pool()
    js = (await nats.connect()).jetstream()

    async def cb(msg):
        async with asyncio.TaskGroup() as group:
            for user in json.loads(msg.data):
                group.create_task(rename(pool, user))
        await msg.ack()

    await js.subscribe("names", cb=cb, manual_ack=True)
