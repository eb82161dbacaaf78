# ruff: noqa
# expect file: EO201
import asyncio
import json

import asyncpg
import nats


class Names:
    def __init__(self, pool: asyncpg.Pool) -> None:
        self.pool = pool
        self._buffer: asyncio.Queue = asyncio.Queue()

    async def on_name(self, msg):
        self._buffer.put_nowait(json.loads(msg.data))
        await msg.ack()

    async def flush_forever(self) -> None:
        while True:
            data = await self._buffer.get()
            await self._save(data)

    async def _save(self, data):
        await self.pool.execute("UPDATE users SET name = $2 WHERE id = $1", data["id"], data["name"])


async def main():
    names = Names(await asyncpg.create_pool())
    js = (await nats.connect()).jetstream()
    await js.subscribe("names", cb=names.on_name, manual_ack=True)
    await names.flush_forever()
