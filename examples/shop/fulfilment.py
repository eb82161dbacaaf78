"""Reserve, charge, ship; and back again where one fails. Each step is safe to repeat under its own key."""

import orders
import payments
from orders import Order, Shipment, Stock, change, store
from settings import LEASE
from sqlalchemy import update
from sqlalchemy.orm import Session

import effectonce as eo

saga = eo.Saga("fulfilment", store, input=Order, lease=LEASE)


class SoldOut(Exception):
    pass


class NoCarrier(Exception):
    pass


#: What the customer has to hear is final. Anything else (the provider is away, the database is busy) is tried for long.
FINAL = (SoldOut, payments.CardDeclined, NoCarrier)
PATIENT = eo.Retry(30, first="100ms", cap="2s", max_crashes=20, on=dict.fromkeys(FINAL, "dead"))


def move(session: Session, order: Order, pieces: int) -> None:
    left = update(Stock).where(Stock.item == order.basket.item, Stock.pieces + pieces >= 0).returning(Stock.pieces)
    if session.execute(left.values(pieces=Stock.pieces + pieces)).first() is None:
        raise SoldOut(order.basket.item)


@saga.step(retry=PATIENT)
def reserve(order: Order) -> None:
    orders.once(lambda session: move(session, order, -1))


@reserve.compensate(retry=PATIENT)
def release(order: Order) -> None:
    orders.once(lambda session: move(session, order, +1))


def payment(order: Order) -> payments.Payment:
    return payments.Payment(order.id, order.basket.amount, order.basket.card)


@saga.step(retry=PATIENT)
def charge(order: Order) -> payments.Receipt:
    """The charge, the row and the end of the intent are one: after a crash before it, the key asks again."""
    with payments.charge.send(payment(order), key=eo.current().key) as sent, orders.transaction() as session:
        receipt: payments.Receipt = sent.result
        change(session, order, state="paid", charge=receipt.id)
        sent.complete(session)
    return receipt


@charge.compensate(retry=PATIENT)
def refund(order: Order) -> None:
    with payments.refund.send(payment(order), key=eo.current().key) as sent, orders.transaction() as session:
        change(session, order, refund=sent.result.id)
        sent.complete(session)


@saga.step(retry=PATIENT)
def ship(order: Order) -> None:
    def shipped(session: Session) -> None:
        session.add(Shipment(order_id=order.id))
        change(session, order, state="shipped")

    if order.basket.country == "Atlantis":
        raise NoCarrier("no carrier goes there")
    orders.once(shipped)
