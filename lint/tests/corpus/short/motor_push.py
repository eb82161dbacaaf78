# ruff: noqa
# expect file: P11
import json

from aiokafka import AIOKafkaConsumer
from motor.motor_asyncio import AsyncIOMotorClient

db = AsyncIOMotorClient()["shop"]


async def main():
    consumer = AIOKafkaConsumer("notes", group_id="n", enable_auto_commit=False)
    await consumer.start()
    async for record in consumer:
        note = json.loads(record.value)
        await db.patients.update_one({"_id": note["patient"]}, {"$push": {"notes": note["text"]}})
        await consumer.commit()
