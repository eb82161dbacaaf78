# ruff: noqa
# expect file: P11
import asyncio, json
from aiokafka import AIOKafkaConsumer
import aiohttp
async def send(s, m):
    await s.post("https://a.example/x", data=m.value)
async def main():
    consumer = AIOKafkaConsumer("t", bootstrap_servers="b", group_id="g", enable_auto_commit=False)
    await consumer.start()
    async with aiohttp.ClientSession() as s:
        while True:
            batch = await consumer.getmany(timeout_ms=1000)
            for tp, msgs in batch.items():
                await asyncio.gather(*(send(s, m) for m in msgs))
            await consumer.commit()
