# ruff: noqa
# expect file: EO105
import httpx
from faststream.redis import RedisBroker
from redis.asyncio import Redis

broker = RedisBroker()
kv = Redis()


@broker.subscriber("parcels")
async def ship(order: dict):
    if not await kv.hsetnx("shipped", order["id"], "1"):
        return
    async with httpx.AsyncClient() as client:
        await client.post("https://carrier.example/parcels", json=order)
