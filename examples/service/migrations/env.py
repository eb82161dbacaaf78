"""Runs the migrations on the engine of the service: alembic upgrade head"""

import asyncio

from alembic import context
from service.database import ENGINE_URL, Base
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import create_async_engine


def include_name(name: str | None, type_: str, parent_names: object) -> bool:
    """Leave the tables of effectonce out of --autogenerate."""
    return not (type_ == "table" and (name or "").startswith("effectonce_"))


def run_on(connection: Connection) -> None:
    context.configure(connection=connection, target_metadata=Base.metadata, include_name=include_name)
    with context.begin_transaction():
        context.run_migrations()


async def run() -> None:
    engine = create_async_engine(ENGINE_URL)
    async with engine.connect() as connection:
        await connection.run_sync(run_on)
    await engine.dispose()


asyncio.run(run())
