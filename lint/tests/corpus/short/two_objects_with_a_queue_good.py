# ruff: noqa
# expect file: clean
import asyncio
import json

import asyncpg
import nats


class Importer:
    def __init__(self, pool: asyncpg.Pool) -> None:
        self.pool = pool
        self.queue = asyncio.Queue()

    def add(self, row) -> None:
        self.queue.put_nowait(row)

    async def run(self) -> None:
        while True:
            row = await self.queue.get()
            await self.pool.execute("UPDATE users SET name = $2 WHERE id = $1", row["id"], row["name"])


class Ticker:
    def __init__(self, socket) -> None:
        self.socket = socket
        self.queue = asyncio.Queue()

    async def on_price(self, msg) -> None:
        self.queue.put_nowait(json.loads(msg.data))
        await msg.ack()

    async def run(self) -> None:
        while True:
            await self.socket.send_json(await self.queue.get())


async def main(socket):
    ticker = Ticker(socket)
    js = (await nats.connect()).jetstream()
    await js.subscribe("prices", cb=ticker.on_price, manual_ack=True)
    await ticker.run()
