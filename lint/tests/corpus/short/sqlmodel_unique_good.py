# ruff: noqa
# expect file: clean
from faststream.rabbit import RabbitBroker
from sqlalchemy.exc import IntegrityError
from sqlmodel import Field, Session, SQLModel, create_engine

engine = create_engine("postgresql://db/x")
broker = RabbitBroker()


class Receipt(SQLModel, table=True):
    number: str = Field(primary_key=True)
    cents: int


@broker.subscriber("receipts")
def on_receipt(number: str, cents: int):
    with Session(engine) as session:
        session.add(Receipt(number=number, cents=cents))
        try:
            session.commit()
        except IntegrityError:
            session.rollback()
