"""Charge a card once, however often the client asks: uvicorn fastapi_app:app"""

import asyncio
import os
from typing import Annotated

from fastapi import Depends, FastAPI, Header, HTTPException
from pydantic import BaseModel

import effectonce as eo
from effectonce.integrations.fastapi import Idempotency

app = FastAPI()
store = eo.connect(os.environ.get("EFFECTONCE_STORE", "sqlite:///shop.db"))
idempotency = Idempotency(app, store, service="shop")


class Payment(BaseModel):
    order: str
    amount: int


class Receipt(BaseModel):
    order: str
    amount: int


async def current_user(authorization: Annotated[str, Header()] = "") -> str:
    user = {"Bearer a-token": "alice", "Bearer b-token": "bob"}.get(authorization)
    if user is None:
        raise HTTPException(401, "who are you?")
    return user


@app.post(
    "/charges", status_code=201, **idempotency.route(principal=current_user, required=True, retention="30d", lease="2s")
)
async def charge(payment: Payment, user: Annotated[str, Depends(current_user)]) -> Receipt:
    await bank(user, payment)
    return Receipt(order=payment.order, amount=payment.amount)


async def bank(user: str, payment: Payment) -> None:
    """The effect outside: a line in the bank's book, and the time until the bank confirms it."""
    with open("bank.txt", "a") as book:
        print(user, payment.order, payment.amount, file=book)
    await asyncio.sleep(float(os.environ.get("BANK_SECONDS", "0.1")))
