# ruff: noqa
# expect file: clean
import asyncio
import json

import asyncpg
from azure.servicebus.aio import ServiceBusClient


async def keep(receiver, message):
    while True:
        await asyncio.sleep(20)
        await receiver.renew_message_lock(message)


async def main():
    pool = await asyncpg.create_pool()
    async with ServiceBusClient.from_connection_string("x") as client:
        async with client.get_queue_receiver("names") as receiver:
            async for message in receiver:
                renewing = asyncio.create_task(keep(receiver, message))
                data = json.loads(str(message))
                await pool.execute("UPDATE users SET name = $2 WHERE id = $1", data["id"], data["name"])
                renewing.cancel()
                await receiver.complete_message(message)
