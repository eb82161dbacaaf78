# ruff: noqa
# expect file: clean
import asyncio
import json

import asyncpg
import httpx
import nats


async def report(error):
    async with httpx.AsyncClient() as client:
        await client.post("https://alerts.example/errors", json={"error": str(error)})


async def main():
    pool = await asyncpg.create_pool()
    js = (await nats.connect()).jetstream()

    async def cb(msg):
        data = json.loads(msg.data)
        try:
            await pool.execute("UPDATE users SET name = $2 WHERE id = $1", data["id"], data["name"])
        except Exception as error:
            asyncio.create_task(report(error))
            await msg.nak()
            raise
        await msg.ack()

    await js.subscribe("names", cb=cb, manual_ack=True)
