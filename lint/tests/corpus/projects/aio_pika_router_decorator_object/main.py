# ruff: noqa
# expect file: P11
import asyncio, json
import aio_pika
import handlers
from router import router
async def on_message(message):
    async with message.process():
        await router.dispatch(message.routing_key, json.loads(message.body))
async def main():
    conn = await aio_pika.connect_robust("amqp://")
    channel = await conn.channel()
    queue = await channel.declare_queue("events")
    await queue.consume(on_message)
    await asyncio.Future()
asyncio.run(main())
