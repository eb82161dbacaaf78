# ruff: noqa
# expect file: P11
import asyncio, aio_pika, json
from sqlalchemy.ext.asyncio import create_async_engine, async_sessionmaker
from sqlalchemy import update
from models import Wallet
Session = async_sessionmaker(create_async_engine("postgresql+asyncpg://"))
async def on_message(message: aio_pika.abc.AbstractIncomingMessage) -> None:
    async with message.process():
        data = json.loads(message.body)
        async with Session() as session:
            await session.execute(update(Wallet).where(Wallet.id == data["wallet"]).values(balance=Wallet.balance + data["amount"]))
            await session.commit()
async def main():
    conn = await aio_pika.connect_robust("amqp://")
    ch = await conn.channel()
    q = await ch.declare_queue("w")
    await q.consume(on_message)
