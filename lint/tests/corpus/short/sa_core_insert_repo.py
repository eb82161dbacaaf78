# ruff: noqa
# expect file: P11
from dataclasses import dataclass

from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, create_engine, insert
from arq.connections import RedisSettings

metadata = MetaData()
tips = Table("tips", metadata, Column("id", Integer, primary_key=True), Column("driver", String), Column("cents", Integer))


@dataclass(frozen=True)
class Tips:
    engine: Engine

    def add(self, driver, cents):
        with self.engine.begin() as conn:
            conn.execute(insert(tips).values(driver=driver, cents=cents))


async def startup(ctx):
    ctx["tips"] = Tips(create_engine("postgresql://db/x"))


async def tipped(ctx, driver, cents):
    ctx["tips"].add(driver, cents)


class WorkerSettings:
    functions = [tipped]
    on_startup = startup
    redis_settings = RedisSettings()
