# ruff: noqa
"""aio-pika: callbacks, iterators, process()."""

import asyncio
import json
import logging

import aio_pika
import asyncpg
import httpx
from aio_pika.abc import AbstractIncomingMessage

log = logging.getLogger(__name__)
pool: asyncpg.Pool | None = None


async def book(message: AbstractIncomingMessage) -> None:  # expect: P11
    async with message.process():
        entry = json.loads(message.body)
        async with pool.acquire() as conn:
            await conn.execute("INSERT INTO ledger (account, amount) VALUES ($1, $2)", entry["account"], entry["amount"])


async def book_once(message: AbstractIncomingMessage) -> None:  # expect: clean
    async with message.process(requeue=True):
        entry = json.loads(message.body)
        async with pool.acquire() as conn, conn.transaction():
            fresh = await conn.fetchval(
                "INSERT INTO inbox (message_id) VALUES ($1) ON CONFLICT DO NOTHING RETURNING message_id", message.message_id
            )
            if fresh is None:
                return
            await conn.execute("INSERT INTO ledger (account, amount) VALUES ($1, $2)", entry["account"], entry["amount"])


async def book_without_transaction(message: AbstractIncomingMessage) -> None:  # expect: EO102
    async with message.process(requeue=True):
        entry = json.loads(message.body)
        async with pool.acquire() as conn:
            status = await conn.execute("INSERT INTO inbox (message_id) VALUES ($1) ON CONFLICT DO NOTHING", message.message_id)
            if status == "INSERT 0 0":
                return
            await conn.execute("INSERT INTO ledger (account, amount) VALUES ($1, $2)", entry["account"], entry["amount"])


async def notify(message: aio_pika.IncomingMessage):  # expect: P11
    order = json.loads(message.body.decode())
    async with httpx.AsyncClient() as client:
        await client.post("https://partner.example/hooks", json=order)
    await message.ack()


async def notify_keyed(message: aio_pika.IncomingMessage):  # expect: clean
    order = json.loads(message.body.decode())
    async with httpx.AsyncClient() as client:
        await client.post("https://partner.example/hooks", json=order, headers={"Idempotency-Key": message.message_id})
    await message.ack()


async def notify_keyed_by_tag(message: aio_pika.IncomingMessage):  # expect: EO301
    async with httpx.AsyncClient() as client:
        await client.post(
            "https://partner.example/hooks",
            content=message.body,
            headers={"Idempotency-Key": f"{message.routing_key}-{message.delivery_tag}"},
        )
    await message.ack()


async def swallow(message: aio_pika.IncomingMessage):  # expect: EO202
    async with message.process():
        try:
            async with pool.acquire() as conn:
                await conn.execute("UPDATE orders SET state = 'seen' WHERE id = $1", json.loads(message.body)["id"])
        except Exception:
            log.exception("could not store")


async def no_ack(message: aio_pika.IncomingMessage):  # expect: EO201
    async with pool.acquire() as conn:
        await conn.execute("UPDATE orders SET state = 'seen' WHERE id = $1", json.loads(message.body)["id"])


async def iterate():  # expect: P11
    connection = await aio_pika.connect_robust("amqp://guest:guest@127.0.0.1/")
    async with connection:
        channel = await connection.channel()
        queue = await channel.declare_queue("jobs", durable=True)
        async with queue.iterator() as messages:
            async for message in messages:
                async with message.process():
                    await handle(json.loads(message.body))


async def handle(job):
    async with httpx.AsyncClient() as client:
        await client.request("POST", "https://partner.example/jobs", json=job)


async def main():
    global pool
    pool = await asyncpg.create_pool("postgresql://localhost/shop")
    connection = await aio_pika.connect_robust("amqp://guest:guest@127.0.0.1/")
    channel = await connection.channel()
    await channel.set_qos(prefetch_count=10)
    queue = await channel.declare_queue("ledger", durable=True)
    await queue.consume(book)
    await queue.consume(book_once)
    await queue.consume(book_without_transaction)
    await queue.consume(notify)
    await queue.consume(notify_keyed)
    await queue.consume(notify_keyed_by_tag)
    await queue.consume(swallow)
    await queue.consume(no_ack, no_ack=True)
    await asyncio.Future()
