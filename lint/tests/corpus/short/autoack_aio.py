# ruff: noqa
# expect file: EO201
import aio_pika, json
from svc import store_order
async def main():
    conn = await aio_pika.connect("amqp://")
    async with conn:
        ch = await conn.channel()
        q = await ch.declare_queue("q")
        async with q.iterator(no_ack=True) as it:
            async for message in it:
                await store_order(json.loads(message.body))
