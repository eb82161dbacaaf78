# ruff: noqa
"""taskiq tasks."""

import logging

import aiohttp
import asyncpg
from taskiq import TaskiqDepends, async_shared_broker
from taskiq_aio_pika import AioPikaBroker
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

log = logging.getLogger(__name__)
broker = AioPikaBroker("amqp://localhost").with_result_backend(RedisAsyncResultBackend("redis://localhost"))
streams = RedisStreamBroker("redis://localhost")


async def get_pool() -> asyncpg.Pool:
    return await asyncpg.create_pool("postgresql://localhost/shop")


@broker.task
async def push(order_id: str) -> None:  # expect: P11
    async with aiohttp.ClientSession() as session:
        async with session.post("https://erp.example/orders", json={"id": order_id}) as response:
            response.raise_for_status()


@broker.task(retry_on_error=True, max_retries=5)
async def push_keyed(order_id: str) -> None:  # expect: clean
    headers = {"Idempotency-Key": f"order-{order_id}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        async with session.post("https://erp.example/orders", json={"id": order_id}, headers=headers) as response:
            response.raise_for_status()


@streams.task(task_name="stock.take")
async def take(sku: str, quantity: int, pool: asyncpg.Pool = TaskiqDepends(get_pool)) -> None:  # expect: P11
    await pool.execute("UPDATE stock SET quantity = quantity - $2 WHERE sku = $1", sku, quantity)


@streams.task
async def take_versioned(sku: str, quantity: int, version: int, pool: asyncpg.Pool = TaskiqDepends(get_pool)):  # expect: clean
    await pool.execute(
        "UPDATE stock SET quantity = quantity - $2, version = version + 1 WHERE sku = $1 AND version = $3",
        sku,
        quantity,
        version,
    )


@async_shared_broker.task
async def note(order_id: str, text: str, pool: asyncpg.Pool = TaskiqDepends(get_pool)):  # expect: P11
    async with pool.acquire() as conn:
        async with conn.transaction():
            await conn.execute("INSERT INTO notes (order_id, text) VALUES ($1, $2)", order_id, text)
