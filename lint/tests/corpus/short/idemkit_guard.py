# ruff: noqa
# expect file: clean
from faststream.rabbit import RabbitBroker
from idemkit import idempotent
import httpx
broker = RabbitBroker()
@broker.subscriber("q")
@idempotent(key="id")
async def h(msg: dict):
    async with httpx.AsyncClient() as c:
        await c.post("https://x.example/y", json=msg)
