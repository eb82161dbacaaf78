# ruff: noqa
# expect file: clean
import asyncio
import json

import aio_pika
import asyncpg

running = set()


async def handle(pool: asyncpg.Pool, message: aio_pika.abc.AbstractIncomingMessage):
    data = json.loads(message.body)
    await pool.execute("UPDATE users SET name = $2 WHERE id = $1", data["id"], data["name"])
    await message.ack()


async def main():
    pool = await asyncpg.create_pool()
    connection = await aio_pika.connect_robust("amqp://")
    channel = await connection.channel()
    incoming = await channel.declare_queue("names")
    async with incoming.iterator() as messages:
        async for message in messages:
            task = asyncio.create_task(handle(pool, message))
            running.add(task)
            task.add_done_callback(running.discard)
