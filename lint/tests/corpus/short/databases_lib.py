# ruff: noqa
# expect file: P11
import databases
from faststream.redis import RedisBroker

db = databases.Database("postgresql://db/x")
broker = RedisBroker()


@broker.subscriber(stream="tips")
async def tip(event: dict):
    await db.execute("UPDATE drivers SET tips = tips + :c WHERE id = :d", values={"c": event["cents"], "d": event["driver"]})
