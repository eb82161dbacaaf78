# ruff: noqa
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker


class Inbox:
    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    async def add(self, event_id: str) -> bool:
        result = await self.session.execute(
            text("INSERT INTO inbox (event_id) VALUES (:id) ON CONFLICT (event_id) DO NOTHING"), {"id": event_id}
        )
        return result.rowcount == 1


class Ledger:
    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    async def append(self, account: str, amount: int) -> None:
        await self.session.execute(
            text("INSERT INTO ledger (account, amount) VALUES (:a, :n)"), {"a": account, "n": amount}
        )


class UnitOfWork:
    def __init__(self, factory: async_sessionmaker) -> None:
        self.factory = factory

    async def __aenter__(self) -> "UnitOfWork":
        self.session = self.factory()
        self.inbox = Inbox(self.session)
        self.ledger = Ledger(self.session)
        return self

    async def __aexit__(self, *exc) -> None:
        await self.session.rollback()
        await self.session.close()

    async def commit(self) -> None:
        await self.session.commit()
