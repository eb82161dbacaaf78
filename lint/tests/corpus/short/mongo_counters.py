# ruff: noqa
# expect file: P11
import asyncio, json, os
from aiokafka import AIOKafkaConsumer
from motor.motor_asyncio import AsyncIOMotorClient
class StatsConsumer:
    def __init__(self):
        self.consumer = AIOKafkaConsumer("events", bootstrap_servers=os.environ["B"], group_id="stats", enable_auto_commit=False)
        self.db = AsyncIOMotorClient(os.environ["M"]).stats
    async def start(self):
        await self.consumer.start()
        try:
            async for msg in self.consumer:
                await self._handle(json.loads(msg.value))
                await self.consumer.commit()
        finally:
            await self.consumer.stop()
    async def _handle(self, event):
        await self.db.counters.update_one({"_id": event["type"]}, {"$inc": {"n": 1}}, upsert=True)
if __name__ == "__main__":
    asyncio.run(StatsConsumer().start())
