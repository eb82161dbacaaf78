# ruff: noqa
# expect file: EO201
import json

import aio_pika
from motor.motor_asyncio import AsyncIOMotorClient

users = AsyncIOMotorClient().app.users


async def main():
    connection = await aio_pika.connect_robust("amqp://")
    channel = await connection.channel()
    queue = await channel.declare_queue("users")
    async with queue.iterator() as it:
        async for message in it:
            await message.ack()
            user = json.loads(message.body)
            await users.replace_one({"_id": user["id"]}, user, upsert=True)
