# ruff: noqa
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
Session = async_sessionmaker(create_async_engine("x"))
