# ruff: noqa
# expect file: P11
import asyncio

import httpx
from faststream.rabbit import RabbitBroker

broker = RabbitBroker()


class Notifier:
    def __init__(self):
        self._client = httpx.AsyncClient()

    async def push(self, user, text):
        await self._client.post(f"https://push.example/{user}", json={"text": text})


notifier = Notifier()


@broker.subscriber("goals")
async def goal(event: dict):
    await asyncio.gather(*(notifier.push(user, event["text"]) for user in event["fans"]))
