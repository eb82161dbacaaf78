# ruff: noqa
# expect file: clean
import asyncio

import aio_pika
from fastapi import FastAPI
from starlette.responses import StreamingResponse

app = FastAPI()
viewers: list[asyncio.Queue] = []


@app.get("/events")
async def events():
    queue: asyncio.Queue = asyncio.Queue()
    viewers.append(queue)

    async def stream():
        while True:
            data = await queue.get()
            yield f"data: {data}\n\n"

    return StreamingResponse(stream())


async def listen():
    connection = await aio_pika.connect_robust("amqp://")
    channel = await connection.channel()
    incoming = await channel.declare_queue("prices")

    async def on_price(message: aio_pika.abc.AbstractIncomingMessage) -> None:
        for queue in viewers:
            queue.put_nowait(message.body.decode())
        await message.ack()

    await incoming.consume(on_price)
