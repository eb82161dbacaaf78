# ruff: noqa
# expect file: clean
import asyncpg
from faststream.nats import NatsBroker

broker = NatsBroker()
pool: asyncpg.Pool


@broker.subscriber("bids")
async def bid(event: dict):
    async with pool.acquire() as conn, conn.transaction():
        if not (row := await conn.fetchrow(
            "INSERT INTO bids (bid_id, cents) VALUES ($1, $2) ON CONFLICT DO NOTHING RETURNING bid_id",
            event["bid_id"],
            event["cents"],
        )):
            return
        await conn.execute("UPDATE lots SET bids = bids + 1 WHERE id = $1", event["lot"])
