# ruff: noqa
# expect file: EO201
import json

import asyncpg
import nats


class Names:
    def __init__(self, pool):
        self.pool = pool

    async def __call__(self, msg):
        await msg.ack()
        data = json.loads(msg.data)
        async with self.pool.acquire() as conn:
            await conn.execute("UPDATE users SET name = $2 WHERE id = $1", data["id"], data["name"])


async def main():
    nc = await nats.connect()
    js = nc.jetstream()
    await js.subscribe("names", durable="n", cb=Names(await asyncpg.create_pool()), manual_ack=True)
