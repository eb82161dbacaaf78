# ruff: noqa
# expect file: P11
import asyncpg, json
from nats.aio.client import Client as NATS
async def main():
    nc = NATS()
    await nc.connect("nats://")
    conn = await asyncpg.connect("")
    async def cb(msg):
        d = json.loads(msg.data.decode())
        async with conn.transaction():
            await conn.executemany("INSERT INTO lines(order_id, sku) VALUES($1,$2)", [(d["id"], l) for l in d["lines"]])
    await nc.subscribe("orders", cb=cb)
