# ruff: noqa
# expect file: clean
import asyncio
import json

import asyncpg
import nats
from fastapi import FastAPI, WebSocket

app = FastAPI()
live = asyncio.Queue()


@app.websocket("/live")
async def view(websocket: WebSocket):
    await websocket.accept()
    while True:
        await websocket.send_json(await live.get())


async def main():
    pool = await asyncpg.create_pool()
    js = (await nats.connect()).jetstream()

    async def cb(msg):
        data = json.loads(msg.data)
        await pool.execute("UPDATE users SET name = $2 WHERE id = $1", data["id"], data["name"])
        live.put_nowait(data)
        await msg.ack()

    await js.subscribe("names", cb=cb, manual_ack=True)
