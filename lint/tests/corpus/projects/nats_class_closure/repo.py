# ruff: noqa
from databases import Database

class LedgerRepo:
    def __init__(self, database: Database):
        self.db = database

    async def append(self, entry: dict):
        query = "INSERT INTO ledger(account, cents, note) VALUES (:account, :cents, :note)"
        await self.db.execute(query=query, values=entry)
