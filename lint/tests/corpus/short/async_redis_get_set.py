# ruff: noqa
# expect file: EO105
from redis.asyncio import Redis
from faststream.rabbit import RabbitBroker
import aiohttp
broker = RabbitBroker("amqp://")
redis = Redis()
@broker.subscriber("jobs")
async def h(msg: dict):
    if await redis.exists(f"job:{msg['job_id']}"):
        return
    await redis.set(f"job:{msg['job_id']}", "1")
    async with aiohttp.ClientSession() as s:
        await s.post("https://a.example/b", json=msg)
