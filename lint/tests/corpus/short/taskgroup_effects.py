# ruff: noqa
# expect file: P11
import asyncio

import httpx
from faststream.rabbit import RabbitBroker

broker = RabbitBroker()
client = httpx.AsyncClient()


async def push(user, text):
    await client.post(f"https://push.example/{user}", json={"text": text})


@broker.subscriber("goals")
async def goal(event: dict):
    async with asyncio.TaskGroup() as group:
        for fan in event["fans"]:
            group.create_task(push(fan, event["text"]))
