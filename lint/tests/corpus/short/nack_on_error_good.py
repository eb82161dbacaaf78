# ruff: noqa
# expect file: clean
import json
import logging

import aio_pika
import asyncpg


async def handle(message: aio_pika.abc.AbstractIncomingMessage) -> None:
    try:
        data = json.loads(message.body)
        conn = await asyncpg.connect("postgresql://db/x")
        await conn.execute("UPDATE users SET name = $2 WHERE id = $1", data["id"], data["name"])
    except Exception:
        logging.exception("failed")
        await message.nack(requeue=True)
    else:
        await message.ack()


async def main():
    connection = await aio_pika.connect_robust("amqp://")
    channel = await connection.channel()
    queue = await channel.declare_queue("users")
    await queue.consume(handle)
