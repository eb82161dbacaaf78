# ruff: noqa
# expect file: P11
import json
import aio_pika
from loguru import logger
from .task import TASK_REGISTRY

async def callback(message: aio_pika.IncomingMessage):
    task = TASK_REGISTRY.get(message.type)
    if not task:
        raise ValueError(message.type)
    with logger.contextualize(correlation_id=message.correlation_id):
        async with message.process():
            await task.run(json.loads(message.body))

async def main():
    connection = await aio_pika.connect_robust("amqp://")
    channel = await connection.channel()
    queue = await channel.get_queue("tasks")
    await queue.consume(callback)
