# ruff: noqa
# expect file: P11
import json

import nats
from motor.motor_asyncio import AsyncIOMotorClient

_db = None


def db():
    global _db
    if _db is None:
        _db = AsyncIOMotorClient("mongodb://db")["shop"]
    return _db


async def handle(msg):
    event = json.loads(msg.data)
    await db().carts.update_one({"_id": event["cart"]}, {"$inc": {"items": 1}})
    await msg.ack()


async def main():
    nc = await nats.connect()
    await nc.jetstream().subscribe("carts", cb=handle, durable="c", manual_ack=True)
