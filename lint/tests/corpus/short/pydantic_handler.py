# ruff: noqa
# expect file: P11
from pydantic import BaseModel
from faststream import Depends
from faststream.rabbit import RabbitBroker
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from .models import Entry

broker = RabbitBroker()
maker = async_sessionmaker(create_async_engine("postgresql+asyncpg://db/x"))


class Deposit(BaseModel):
    account: str
    cents: int


async def session():
    async with maker() as s:
        yield s


class Ledger:
    def __init__(self, session: AsyncSession):
        self.session = session

    async def book(self, deposit: Deposit):
        self.session.add(Entry(account=deposit.account, cents=deposit.cents))
        await self.session.commit()


def ledger(s: AsyncSession = Depends(session)) -> Ledger:
    return Ledger(s)


@broker.subscriber("deposits")
async def deposited(deposit: Deposit, book: Ledger = Depends(ledger)):
    await book.book(deposit)
