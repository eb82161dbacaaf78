"""Reserves stock for each order, once: the message, the pieces and the next message are one commit (mode T).

effectonce run service.stock:worker
"""

from typing import Final

from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncSession

import effectonce as eo

from . import telemetry
from .database import Stock, broker, sessions
from .orders import OrderPlaced, change, end
from .settings import PLACED_QUEUE, RESERVED_QUEUE

#: A message that a killed process had in hand counts one crash: the chaos script kills more often than servers die.
PATIENT: Final = eo.Retry(50, first="200ms", cap="10s", max_crashes=20)

worker = eo.Worker(broker, inbox=eo.Inbox(scope="service-stock", retention="30d"), connect=sessions, name="stock")
reserved_outbox = eo.Outbox(to=RESERVED_QUEUE)


@worker.handler(PLACED_QUEUE, type="order.placed", retry=PATIENT)
async def reserve(session: AsyncSession, message: eo.Message[OrderPlaced]) -> None:
    placed = message.data
    piece = update(Stock).where(Stock.item == placed.basket.item, Stock.pieces > 0).returning(Stock.pieces)
    if (await session.execute(piece.values(pieces=Stock.pieces - 1))).first() is None:
        await end(session, placed, "sold out")
        return
    await change(session, placed.order, state="reserved")
    await reserved_outbox.send(session, eo.Message(type="stock.reserved", data=placed))


telemetry.watch(worker)
telemetry.trace(reserved_outbox)
