# ruff: noqa
# expect file: clean
import asyncio, json, nats
from nats.js.api import ConsumerConfig
import asyncpg
async def main():
    nc = await nats.connect("nats://x")
    js = nc.jetstream()
    db = await asyncpg.connect("")
    sub = await js.pull_subscribe("a", "d", config=ConsumerConfig(ack_wait=30))
    while True:
        try:
            msgs = await sub.fetch(1)
        except nats.errors.TimeoutError:
            continue
        for m in msgs:
            d = json.loads(m.data)
            await db.execute("INSERT INTO prices (sku, price) VALUES ($1, $2) ON CONFLICT (sku) DO UPDATE SET price = EXCLUDED.price", d["sku"], d["price"])
            await m.ack()
