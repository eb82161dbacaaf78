"""What the messages say, and the two transactions that begin and end an order (mode T)."""

import uuid

from pydantic import BaseModel
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncSession

import effectonce as eo

from . import telemetry
from .database import Order, sessions
from .settings import ENDED_QUEUE, PLACED_QUEUE


class Basket(BaseModel):
    """What a customer sends. The card ``declined`` is declined, and no carrier goes to ``Atlantis``."""

    item: str
    amount: int
    card: str = "visa"
    country: str = "NL"


class OrderPlaced(BaseModel):
    """What follows from it; also the data of the saga, and the answer to the customer."""

    order: str
    customer: str
    basket: Basket


class OrderEnded(BaseModel):
    """An order was shipped, cancelled or sold out, and its customer has to hear of it."""

    order: str
    customer: str
    state: str


requests = eo.Inbox(scope="service-api", retention="30d")
placed_outbox = eo.Outbox(to=PLACED_QUEUE)
ended_outbox = eo.Outbox(to=ENDED_QUEUE)
telemetry.trace(placed_outbox, ended_outbox)


async def place(key: str, customer: str, basket: Basket) -> eo.Outcome[OrderPlaced]:
    """Place an order once for ``key``: the key, the order, the message and the answer are one commit."""

    async def insert(session: AsyncSession, key: str) -> OrderPlaced:
        placed = OrderPlaced(order=str(uuid.uuid4()), customer=customer, basket=basket)
        session.add(Order(id=placed.order, customer=customer, item=basket.item, amount=basket.amount))
        await placed_outbox.send(session, eo.Message(type="order.placed", data=placed))
        return placed

    async with sessions.begin() as session:
        return await requests.call(session, key, insert, payload=basket)


async def change(session: AsyncSession, order: str, **columns: str) -> None:
    """Change columns of an order, in the transaction of ``session``."""
    await session.execute(update(Order).where(Order.id == order).values(**columns))


async def end(session: AsyncSession, placed: OrderPlaced, state: str) -> None:
    """End an order in the transaction of ``session``, and let the customer hear of it."""
    await change(session, placed.order, state=state)
    ended = OrderEnded(order=placed.order, customer=placed.customer, state=state)
    await ended_outbox.send(session, eo.Message(type="order.ended", data=ended))
