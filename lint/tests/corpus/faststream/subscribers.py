# ruff: noqa
"""FastStream subscribers on several brokers."""

from faststream import AckPolicy, Context, FastStream
from faststream.kafka import KafkaBroker
from faststream.nats import NatsBroker
from faststream.rabbit import RabbitBroker, RabbitMessage, RabbitRouter
from faststream.redis import RedisBroker
from pydantic import BaseModel
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from shop import mailer
from shop.notifications import send_sms

rabbit = RabbitBroker("amqp://localhost")
kafka = KafkaBroker("localhost:9092")
nats = NatsBroker()
redis = RedisBroker()
router = RabbitRouter(prefix="shop.")
app = FastStream(rabbit)
engine = create_async_engine("postgresql+asyncpg://localhost/shop")


class Order(BaseModel):
    id: str
    event_id: str
    phone: str
    total: int


@rabbit.subscriber("orders")
async def text_customer(order: Order):  # expect: P11
    await send_sms(order.phone, "thanks")


@rabbit.subscriber("orders.paid")
@rabbit.publisher("orders.booked")
async def book(order: Order):  # expect: P11
    async with engine.begin() as conn:
        await conn.execute(text("INSERT INTO ledger (order_id, total) VALUES (:id, :total)"), order.model_dump())


@kafka.subscriber("orders", group_id="ledger")
async def book_once(order: Order):  # expect: clean
    async with AsyncSession(engine) as session, session.begin():
        result = await session.execute(
            text("INSERT INTO inbox (event_id) VALUES (:id) ON CONFLICT DO NOTHING RETURNING event_id"), {"id": order.event_id}
        )
        if result.scalar_one_or_none() is None:
            return
        await session.execute(text("INSERT INTO ledger (order_id, total) VALUES (:id, :total)"), order.model_dump())


@kafka.subscriber("raw")
async def forward(order: Order):  # expect: P11
    await kafka.publish(order, topic="clean")


@nats.subscriber("stock", durable="stock")
async def reserve(order: Order):  # expect: P11
    async with engine.begin() as conn:
        await conn.execute(text("UPDATE stock SET reserved = reserved + 1 WHERE order_id = :id"), {"id": order.id})


@redis.subscriber(stream="orders")
async def set_state(order: Order):  # expect: clean
    async with engine.begin() as conn:
        await conn.execute(text("UPDATE orders SET state = 'seen' WHERE id = :id"), {"id": order.id})


@router.subscriber("mail")
async def mail(order: Order, message: RabbitMessage):  # expect: P11
    await mailer.send_mail(order.id)


@router.subscriber("early", ack_policy=AckPolicy.ACK_FIRST)
async def early(order: Order):  # expect: EO201
    async with engine.begin() as conn:
        await conn.execute(text("UPDATE orders SET state = 'seen' WHERE id = :id"), {"id": order.id})


@rabbit.subscriber("manual", ack_policy=AckPolicy.MANUAL)
async def manual(order: Order, message: RabbitMessage, log=Context("logger")):  # expect: clean
    async with engine.begin() as conn:
        await conn.execute(text("UPDATE orders SET state = 'seen' WHERE id = :id"), {"id": order.id})
    await message.ack()
