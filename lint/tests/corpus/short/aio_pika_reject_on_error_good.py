# ruff: noqa
# expect file: clean
import json

import aio_pika
from sqlalchemy import update
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from models import User

Session = async_sessionmaker(create_async_engine("postgresql+asyncpg://db"))


async def on_message(message: aio_pika.abc.AbstractIncomingMessage) -> None:
    try:
        event = json.loads(message.body)
        async with Session.begin() as session:
            await session.execute(update(User).where(User.id == event["id"]).values(name=event["name"]))
    except Exception:
        await message.reject(requeue=False)
        raise
    else:
        await message.ack()


async def main():
    connection = await aio_pika.connect_robust("amqp://")
    channel = await connection.channel()
    queue = await channel.declare_queue("users")
    await queue.consume(on_message)
