# ruff: noqa
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
factory = async_sessionmaker(create_async_engine("x"))
