# ruff: noqa
# expect file: P11
import asyncio

import httpx

from app.kafka import consume


async def on_order(event: dict) -> None:
    async with httpx.AsyncClient() as client:
        await client.post("https://erp.example/orders", json=event)


if __name__ == "__main__":
    asyncio.run(consume(["orders"], "erp", on_order))
