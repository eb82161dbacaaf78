# ruff: noqa
# expect file: clean
import asyncio
import json

import nats
import websockets

outgoing = asyncio.Queue()


async def serve(socket):
    while True:
        update = await outgoing.get()
        await socket.send(json.dumps(update))


async def main():
    js = (await nats.connect()).jetstream()

    async def cb(msg):
        await outgoing.put(json.loads(msg.data))
        await msg.ack()

    await js.subscribe("prices", cb=cb, manual_ack=True)
    async with websockets.serve(serve, "localhost", 8000):
        await asyncio.Future()
