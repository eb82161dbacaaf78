# ruff: noqa
import asyncpg
class Repo:
    def __init__(self, pool: asyncpg.Pool):
        self.pool = pool
    async def add_order(self, data):
        await self.pool.execute("INSERT INTO orders (customer, total) VALUES ($1, $2)", data["customer"], data["total"])
    async def cancel(self, id):
        await self.pool.execute("UPDATE orders SET status='cancelled' WHERE id=$1", id)
