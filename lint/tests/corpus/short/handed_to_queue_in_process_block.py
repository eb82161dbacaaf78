# ruff: noqa
# expect file: EO201
import asyncio
import json

import aio_pika
import asyncpg


async def writer(pool: asyncpg.Pool, pending: asyncio.Queue) -> None:
    while True:
        user = await pending.get()
        await pool.execute("UPDATE users SET name = $2 WHERE id = $1", user["id"], user["name"])
        pending.task_done()


async def main() -> None:
    pool = await asyncpg.create_pool()
    pending: asyncio.Queue[dict] = asyncio.Queue(maxsize=1000)
    asyncio.create_task(writer(pool, pending))
    connection = await aio_pika.connect_robust("amqp://")
    channel = await connection.channel()
    incoming = await channel.declare_queue("users")
    async with incoming.iterator() as messages:
        async for message in messages:
            async with message.process():
                await pending.put(json.loads(message.body))


asyncio.run(main())
