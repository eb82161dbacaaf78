"""The service's own database: its tables, and the sessions that they are written in."""

from typing import Final

from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import effectonce as eo

from .settings import BROKER, STORE

store = eo.connect(STORE)
broker = eo.connect_broker(BROKER)

_DRIVERS: Final = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}
_url: Final = make_url(STORE)
#: SQLAlchemy's form of `STORE`: the tables of effectonce and those of the service are in one database.
ENGINE_URL: Final = _url.set(drivername=_DRIVERS.get(_url.drivername, _url.drivername))
engine = create_async_engine(ENGINE_URL, connect_args={"timeout": 30})
sessions: async_sessionmaker[AsyncSession] = async_sessionmaker(engine, expire_on_commit=False)


class Base(DeclarativeBase):
    """The tables that `migrations` creates."""


class Order(Base):
    """``state``: placed → reserved → packed → paid → shipped; or sold out, or cancelled."""

    __tablename__ = "orders"
    id: Mapped[str] = mapped_column(primary_key=True)
    customer: Mapped[str]
    item: Mapped[str]
    amount: Mapped[int]
    state: Mapped[str] = mapped_column(default="placed")
    charge: Mapped[str | None] = mapped_column(default=None)
    refund: Mapped[str | None] = mapped_column(default=None)


class Stock(Base):
    """How many pieces of an item are left."""

    __tablename__ = "stock"
    item: Mapped[str] = mapped_column(primary_key=True)
    pieces: Mapped[int]


class Shipment(Base):
    """Its number is the only key: a second shipment of an order would be there to see."""

    __tablename__ = "shipments"
    number: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[str]
