"""Place an order once, with claim, order and response in one commit, on FastAPI and SQLAlchemy: uvicorn app:app"""

import os
import time
from collections.abc import Iterator
from typing import Annotated

from fastapi import Depends, FastAPI, Header, HTTPException, Response
from pydantic import BaseModel
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import effectonce as eo
from effectonce.integrations.fastapi import RESPONSES, answer_problems, request_key

engine = create_engine(os.environ.get("DATABASE", "sqlite:///shop.db"))
inbox = eo.Inbox(scope="orders", retention="30d")
app = FastAPI()
answer_problems(app)


class Base(DeclarativeBase):
    pass


class OrderRow(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    owner: Mapped[str]
    name: Mapped[str]
    amount: Mapped[int]


class Order(BaseModel):
    name: str
    amount: int


class Receipt(BaseModel):
    number: int
    name: str


def current_user(authorization: Annotated[str, Header()] = "") -> str:
    user = {"Bearer a-token": "alice", "Bearer b-token": "bob"}.get(authorization)
    if user is None:
        raise HTTPException(401, "who are you?")
    return user


def transaction() -> Iterator[Session]:
    with Session(engine) as session:
        yield session


@app.post("/orders", status_code=201, responses=RESPONSES)
def order(
    order: Order,
    user: Annotated[str, Depends(current_user)],
    key: Annotated[str, Depends(request_key(current_user))],
    session: Annotated[Session, Depends(transaction)],
    response: Response,
) -> Receipt:
    def place(session: Session, key: str) -> Receipt:
        row = OrderRow(owner=user, name=order.name, amount=order.amount)
        session.add(row)
        session.flush()
        time.sleep(float(os.environ.get("ORDER_SECONDS", "0")))  # a slow part of the work, with the transaction open
        return Receipt(number=row.id, name=row.name)

    with session.begin():
        outcome = inbox.call(session, key, place, payload=order)
    if outcome.replayed:
        response.headers["Idempotent-Replayed"] = "true"
    return outcome.value


def migrate() -> None:
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        inbox.migrate(session)


if __name__ == "__main__":
    migrate()
