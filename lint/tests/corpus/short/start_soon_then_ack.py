# ruff: noqa
# expect file: EO201
import anyio
import asyncpg
import nats


async def rename(pool: asyncpg.Pool, data):
    await pool.execute("UPDATE users SET name = $2 WHERE id = $1", data["id"], data["name"])


async def main():
    pool = await asyncpg.create_pool()
    js = (await nats.connect()).jetstream()
    sub = await js.pull_subscribe("names", "names")
    async with anyio.create_task_group() as group:
        while True:
            for msg in await sub.fetch(10):
                group.start_soon(rename, pool, msg.data)
                await msg.ack()
