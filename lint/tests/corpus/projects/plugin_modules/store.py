# ruff: noqa
import asyncpg


async def add(member, points):
    conn = await asyncpg.connect("postgresql://db/x")
    await conn.execute("UPDATE members SET points = points + $2 WHERE id = $1", member, points)
