"""Pack, charge, ship; and back again where one fails. Then the customer gets a mail.

effectonce run service.fulfilment:worker
"""

from typing import Final

from sqlalchemy import update

import effectonce as eo

from . import calls, telemetry
from .calls import Mail, Payment, Receipt
from .database import Shipment, Stock, broker, sessions, store
from .orders import OrderEnded, OrderPlaced, change, end
from .settings import ENDED_QUEUE, LEASE, RESERVED_QUEUE
from .stock import PATIENT

saga = eo.Saga("service-fulfilment", store, input=OrderPlaced, lease=LEASE)
steps = eo.Inbox(scope="service-fulfilment", retention="30d")


class NoCarrier(Exception):
    """No carrier goes there."""


#: What an intent records for good, as a declined card, is not tried again either.
STEP_RETRY: Final = eo.Retry(30, first="100ms", cap="2s", max_crashes=20, on={NoCarrier: "dead"})


@saga.step(retry=STEP_RETRY)
async def pack(placed: OrderPlaced) -> None:
    """Take over the piece that was reserved."""
    async with sessions.begin() as session:
        if await steps.first(session, eo.current().key):
            await change(session, placed.order, state="packed")


@pack.compensate(retry=STEP_RETRY)
async def unpack(placed: OrderPlaced) -> None:
    async with sessions.begin() as session:
        if await steps.first(session, eo.current().key):
            await session.execute(update(Stock).where(Stock.item == placed.basket.item).values(pieces=Stock.pieces + 1))


@saga.step(retry=STEP_RETRY)
async def charge(placed: OrderPlaced) -> Receipt:
    """The order's row and the end of the intent are one commit: after a crash before it, the bank gets the same key."""
    async with calls.charge.send(payment_for(placed), key=eo.current().key) as sent, sessions.begin() as session:
        receipt = sent.result
        if not sent.replayed:
            await change(session, placed.order, state="paid", charge=receipt.id)
            await sent.complete(session)
    return receipt


@charge.compensate(retry=STEP_RETRY)
async def refund(placed: OrderPlaced) -> None:
    async with calls.refund.send(payment_for(placed), key=eo.current().key) as sent, sessions.begin() as session:
        if not sent.replayed:
            await change(session, placed.order, refund=sent.result.id)
            await sent.complete(session)


@saga.step(retry=STEP_RETRY)
async def ship(placed: OrderPlaced) -> None:
    if placed.basket.country == "Atlantis":
        raise NoCarrier(f"no carrier goes to {placed.basket.country}")
    async with sessions.begin() as session:
        if await steps.first(session, eo.current().key):
            session.add(Shipment(order_id=placed.order))
            await end(session, placed, "shipped")


def payment_for(placed: OrderPlaced) -> Payment:
    return Payment(order=placed.order, amount=placed.basket.amount, card=placed.basket.card)


worker = eo.Worker(broker, store=store, name="fulfilment", recover=(calls.intents, saga), recover_every=LEASE)


@worker.handler(RESERVED_QUEUE, type="stock.reserved", lease=LEASE, retention="30d", retry=PATIENT)
async def fulfil(message: eo.Message[OrderPlaced]) -> None:
    placed = message.data
    try:
        await saga.arun(placed.order, placed)
    except eo.SagaFailed:  # and what was done is undone
        async with sessions.begin() as session:
            if await steps.first(session, f"{placed.order}/cancelled"):
                await end(session, placed, "cancelled")


@worker.handler(ENDED_QUEUE, type="order.ended", lease=LEASE, retention="30d", retry=PATIENT)
async def tell(message: eo.Message[OrderEnded]) -> None:
    ended = message.data
    await calls.send_mail(Mail(to=ended.customer, text=f"Your order {ended.order}: {ended.state}."), key=message.key)


telemetry.watch(worker)
