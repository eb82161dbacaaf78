# ruff: noqa
# expect file: P11
from taskiq import TaskiqScheduler
from taskiq_redis import ListQueueBroker
import asyncpg
broker = ListQueueBroker("redis://")
@broker.task(task_name="credit")
async def credit(user_id: int, points: int):
    conn = await asyncpg.connect("")
    try:
        await conn.execute("UPDATE users SET points = points + $1 WHERE id = $2", points, user_id)
    finally:
        await conn.close()
