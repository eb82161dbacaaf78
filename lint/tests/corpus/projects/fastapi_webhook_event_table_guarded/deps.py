# ruff: noqa
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
Session = async_sessionmaker(create_async_engine("x"))
async def get_session():
    async with Session() as s:
        yield s
