# ruff: noqa
# expect file: EO201
import json

import aio_pika
import asyncpg


class Worker:
    def __init__(self, pool):
        self.pool = pool

    async def on_message(self, message: aio_pika.IncomingMessage):
        await message.ack()
        await self.rename(json.loads(message.body))

    async def rename(self, data):
        await self.pool.execute("UPDATE users SET name = $2 WHERE id = $1", data["id"], data["name"])


async def main():
    connection = await aio_pika.connect("amqp://")
    channel = await connection.channel()
    queue = await channel.declare_queue("names")
    await queue.consume(Worker(await asyncpg.create_pool()).on_message)
