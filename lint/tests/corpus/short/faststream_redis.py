# ruff: noqa
# expect file: clean
from faststream.redis import RedisBroker
import redis.asyncio as redis
import httpx
broker = RedisBroker()
r = redis.Redis()
@broker.subscriber("orders")
async def on(order: dict):
    if not await r.set(f"o:{order['id']}", "1", nx=True, ex=1209600):
        return
    async with httpx.AsyncClient() as c:
        await c.post("https://x.example/y", json=order)
