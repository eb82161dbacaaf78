# ruff: noqa
# expect file: EO201
import asyncio

import asyncpg
from faststream.rabbit import RabbitBroker

broker = RabbitBroker()
pool: asyncpg.Pool


async def rename(data):
    await pool.execute("UPDATE users SET name = $2 WHERE id = $1", data["id"], data["name"])


@broker.subscriber("names")
async def on_name(data: dict):
    asyncio.create_task(rename(data))
