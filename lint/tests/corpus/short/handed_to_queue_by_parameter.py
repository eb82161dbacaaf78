# ruff: noqa
# expect file: EO201, P11
import asyncio

import httpx
from aiokafka import AIOKafkaConsumer


async def read(queue):
    consumer = AIOKafkaConsumer("sms", group_id="sms", enable_auto_commit=False)
    await consumer.start()
    try:
        async for record in consumer:
            await queue.put(record.value)
            await consumer.commit()
    finally:
        await consumer.stop()


async def send(queue, client: httpx.AsyncClient):
    while True:
        text = await queue.get()
        await client.post("https://sms.example/messages", content=text)


async def main():
    queue = asyncio.Queue()
    async with httpx.AsyncClient() as client:
        await asyncio.gather(read(queue), *(send(queue, client) for _ in range(4)))
