# ruff: noqa
# expect file: P11
import json
from aiokafka import AIOKafkaConsumer
from repo import Repo
class Handlers:
    def __init__(self, repo: Repo):
        self.repo = repo
    async def on_order_created(self, data):
        await self.repo.add_order(data)
    async def on_order_cancelled(self, data):
        await self.repo.cancel(data["id"])
async def run(repo: Repo):
    handlers = Handlers(repo)
    consumer = AIOKafkaConsumer("orders", group_id="o", enable_auto_commit=False)
    async with consumer:
        async for msg in consumer:
            event = json.loads(msg.value)
            handler = getattr(handlers, f"on_{event['type']}", None)
            if handler:
                await handler(event["data"])
            await consumer.commit()
