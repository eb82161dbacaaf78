# ruff: noqa
# expect file: clean
import asyncio, json, os
from aiokafka import AIOKafkaConsumer
from motor.motor_asyncio import AsyncIOMotorClient
from pymongo.errors import DuplicateKeyError
class StatsConsumer:
    def __init__(self):
        self.consumer = AIOKafkaConsumer("events", bootstrap_servers=os.environ["B"], group_id="stats", enable_auto_commit=False)
        self.db = AsyncIOMotorClient(os.environ["M"]).stats
    async def start(self):
        await self.consumer.start()
        async for msg in self.consumer:
            await self._handle(json.loads(msg.value))
            await self.consumer.commit()
    async def _handle(self, event):
        try:
            await self.db.seen.insert_one({"_id": event["id"]})
        except DuplicateKeyError:
            return
        await self.db.counters.update_one({"_id": event["type"]}, {"$inc": {"n": 1}}, upsert=True)
