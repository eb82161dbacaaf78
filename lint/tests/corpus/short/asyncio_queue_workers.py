# ruff: noqa
# expect file: P11
import asyncio
import json

import aio_pika
import httpx

inner: asyncio.Queue = asyncio.Queue()


async def read():
    connection = await aio_pika.connect_robust("amqp://")
    channel = await connection.channel()
    queue = await channel.declare_queue("parcels")
    async with queue.iterator() as messages:
        async for message in messages:
            async with message.process():
                await ship(json.loads(message.body))


async def ship(parcel):
    async with httpx.AsyncClient() as client:
        await client.post("https://carrier.example/parcels", json=parcel)


asyncio.run(read())
