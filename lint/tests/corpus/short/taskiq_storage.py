# ruff: noqa
# expect file: clean
import taskiq_redis
from taskiq import Context, TaskiqDepends
broker = taskiq_redis.ListQueueBroker("redis://")
@broker.task
async def resize(image_id: str, ctx: Context = TaskiqDepends()):
    data = await ctx.state.storage.get(image_id)
    await ctx.state.storage.put(f"{image_id}-small", data[:10])
