# ruff: noqa
"""nats-py, with and without JetStream."""

import asyncio
import json

import asyncpg
import nats
from nats.aio.msg import Msg
from nats.js import JetStreamContext


class Billing:
    def __init__(self, pool: asyncpg.Pool, js: JetStreamContext):
        self.pool = pool
        self.js = js

    async def start(self):
        await self.js.subscribe("payments.*", durable="billing", cb=self.on_payment, manual_ack=True)
        await self.js.subscribe("refunds.*", durable="refunds", cb=self.on_refund, manual_ack=True)

    async def on_payment(self, msg: Msg):  # expect: P11
        payment = json.loads(msg.data)
        async with self.pool.acquire() as conn:
            await conn.execute("UPDATE accounts SET balance = balance - $1 WHERE id = $2", payment["amount"], payment["account"])
        await msg.ack()

    async def on_refund(self, msg: Msg):  # expect: clean
        refund = json.loads(msg.data)
        async with self.pool.acquire() as conn, conn.transaction():
            done = await conn.execute("INSERT INTO inbox (id) VALUES ($1) ON CONFLICT DO NOTHING", refund["id"])
            if done == "INSERT 0 1":
                await conn.execute("UPDATE accounts SET balance = balance + $1 WHERE id = $2", refund["amount"], refund["account"])
        await msg.ack()


async def pull():  # expect: P11
    nc = await nats.connect("nats://localhost:4222")
    js = nc.jetstream()
    sub = await js.pull_subscribe("orders", durable="forward")
    while True:
        for msg in await sub.fetch(10, timeout=5):
            await js.publish("orders.copy", msg.data)
            await msg.ack()


async def pull_with_id():  # expect: clean
    nc = await nats.connect("nats://localhost:4222")
    js = nc.jetstream()
    sub = await js.pull_subscribe("orders", durable="forward")
    while True:
        for msg in await sub.fetch(10, timeout=5):
            order = json.loads(msg.data)
            await js.publish("orders.copy", msg.data, headers={"Nats-Msg-Id": order["event_id"]})
            await msg.ack()


async def ack_first():  # expect: EO201
    nc = await nats.connect()
    js = nc.jetstream()
    pool = await asyncpg.create_pool()
    sub = await js.subscribe("states", durable="states")
    async for msg in sub.messages:
        await msg.ack()
        await pool.execute("UPDATE orders SET state = $1 WHERE id = $2", *json.loads(msg.data))


async def main():
    nc = await nats.connect("nats://localhost:4222")
    pool = await asyncpg.create_pool("postgresql://localhost/shop")

    async def log_file(msg):  # expect: P11
        with open("events.log", mode="ab") as file:
            file.write(msg.data)

    await Billing(pool, nc.jetstream()).start()
    await nc.subscribe("events", cb=log_file)
    await asyncio.Event().wait()
