# ruff: noqa
import asyncpg


class LedgerRepository:
    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool

    async def append(self, account: str, amount: int) -> None:
        async with self._pool.acquire() as connection:
            await connection.execute("INSERT INTO ledger (account, amount) VALUES ($1, $2)", account, amount)

    async def close(self, account: str) -> None:
        async with self._pool.acquire() as connection:
            await connection.execute("UPDATE accounts SET closed = true WHERE id = $1", account)
