# ruff: noqa
# expect file: EO401
import json

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from .models import Order, Processed

Session = async_sessionmaker(create_async_engine("postgresql+asyncpg://db/x"))


async def handle(event, producer):
    async with Session() as session:
        done = await session.execute(insert(Processed).values(id=event["id"]).on_conflict_do_nothing())
        if done.rowcount == 0:
            return
        session.add(Order(id=event["order"], total=event["total"]))
        await session.commit()
    await producer.send_and_wait("order.created", json.dumps(event).encode())


async def main():
    consumer = AIOKafkaConsumer("checkout", group_id="o", enable_auto_commit=False)
    producer = AIOKafkaProducer()
    await consumer.start()
    await producer.start()
    async for record in consumer:
        await handle(json.loads(record.value), producer)
        await consumer.commit()
