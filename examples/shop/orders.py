"""The shop's own database: an order and the message about it are one commit, and so are a delivery and its effect."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass

from settings import DATABASE, QUEUE
from sqlalchemy import create_engine, update
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

import effectonce as eo

store = eo.connect(DATABASE)
requests = eo.Inbox(scope="shop-web", retention="30d")
steps = eo.Inbox(scope="shop-fulfilment", retention="30d")
outbox = eo.Outbox(to=QUEUE)
url = DATABASE.replace("postgresql://", "postgresql+psycopg://")
PIECES = 10_000  # of chairs, to begin with
transaction = sessionmaker(create_engine(url, connect_args={"timeout": 30} if "sqlite" in url else {})).begin


@dataclass(frozen=True)
class Basket:
    """What a customer sends."""

    item: str
    amount: int
    card: str = "visa"
    country: str = "NL"


@dataclass(frozen=True)
class Order:
    """What follows from it, as it goes through the queue and into the saga."""

    id: str
    basket: Basket


class Base(DeclarativeBase):
    pass


class OrderRow(Base):
    __tablename__ = "orders"
    id: Mapped[str] = mapped_column(primary_key=True)
    customer: Mapped[str]
    item: Mapped[str]
    amount: Mapped[int]
    state: Mapped[str] = mapped_column(default="placed")  # then paid and shipped, or cancelled
    charge: Mapped[str | None] = mapped_column(default=None)
    refund: Mapped[str | None] = mapped_column(default=None)


class Stock(Base):
    __tablename__ = "stock"
    item: Mapped[str] = mapped_column(primary_key=True)
    pieces: Mapped[int]


class Shipment(Base):
    """Its number is the only key: a second shipment of an order would be there to see."""

    __tablename__ = "shipments"
    number: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[str]


def place(key: str, customer: str, basket: Basket) -> eo.Outcome[Order]:
    """Place an order once for ``key``: the key, the order, the message and the answer are one commit (mode T)."""

    def placed(session: Session, key: str) -> Order:
        order = Order(str(uuid.uuid4()), basket)
        session.add(OrderRow(id=order.id, customer=customer, item=basket.item, amount=basket.amount))
        outbox.send(session, eo.Message(type="order.placed", data=order, key=order.id))
        return order

    with transaction() as session:
        return requests.call(session, key, placed, payload=basket)


def once(do: Callable[[Session], None]) -> None:
    """Run ``do`` in a transaction, once for the step of the saga that this is part of."""
    with transaction() as session:
        if steps.first(session, eo.current().key):
            do(session)


def change(session: Session, order: Order, **columns: str) -> None:
    session.execute(update(OrderRow).where(OrderRow.id == order.id).values(**columns))


def migrate() -> None:
    """Create what is missing: the tables of effectonce, ours, and something to sell."""
    store.migrate()
    with transaction() as session:
        Base.metadata.create_all(session.connection())
        if session.get(Stock, "chair") is None:
            session.add(Stock(item="chair", pieces=PIECES))
        steps.check(session)  # refuses a database that may lose a commit


if __name__ == "__main__":
    migrate()
