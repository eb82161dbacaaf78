# ruff: noqa
# expect file: P11
from taskiq_nats import NatsBroker
import httpx
broker = NatsBroker("nats://")
@broker.task
async def hook(url: str):
    async with httpx.AsyncClient() as c:
        await c.post(url, json={})
