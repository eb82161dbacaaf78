"""What `test_taskiq_redis` kills: a worker whose first attempt at a charge never comes to its end."""

import asyncio
import os

from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

import effectonce as eo
from effectonce.integrations.taskiq import IdempotencyMiddleware

url, name = os.environ["BROKER"], os.environ["QUEUE"]
results: RedisAsyncResultBackend[str] = RedisAsyncResultBackend(url, prefix_str=name)
broker = (
    RedisStreamBroker(url, queue_name=name, consumer_group_name=name, xread_block=20, idle_timeout=500)
    .with_result_backend(results)
    .with_middlewares(IdempotencyMiddleware(longest=0.1))
)
store = eo.connect(f"{url}?namespace={name}")


@broker.task(task_name=f"{name}:charge")
@eo.once(store, scope="charge", key="payment_id", lease="400ms")
async def charge(payment_id: str) -> str:
    attempt = eo.current().attempt
    with open("begun.txt", "a") as begun:
        print(payment_id, attempt, file=begun)
    await asyncio.sleep(60 if (payment_id, attempt) == ("p1", 1) else 0)
    return f"receipt {attempt}"
