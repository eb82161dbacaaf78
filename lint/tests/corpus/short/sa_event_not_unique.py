# ruff: noqa
# expect file: P11
from celery import shared_task
from sqlalchemy import create_engine, update
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

engine = create_engine("postgresql://db/x")


class Base(DeclarativeBase):
    pass


class SeenMessage(Base):
    __tablename__ = "seen"
    id: Mapped[int] = mapped_column(primary_key=True)
    message_id: Mapped[str] = mapped_column(index=True)


class Wallet(Base):
    __tablename__ = "wallets"
    id: Mapped[int] = mapped_column(primary_key=True)
    coins: Mapped[int]


@shared_task
def won(message_id, wallet, coins):
    with Session(engine) as session, session.begin():
        session.add(SeenMessage(message_id=message_id))
        session.execute(update(Wallet).where(Wallet.id == wallet).values(coins=Wallet.coins + coins))
