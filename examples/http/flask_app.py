"""Charge a card once, however often the client asks: flask --app flask_app run"""

import os
import time
from typing import Any

from flask import Flask, abort, g, request

import effectonce as eo
from effectonce.integrations.flask import idempotent

app = Flask(__name__)
store = eo.connect(os.environ.get("EFFECTONCE_STORE", "sqlite:///shop.db"))


@app.before_request
def authenticate() -> None:
    g.user = {"Bearer a-token": "alice", "Bearer b-token": "bob"}.get(request.headers.get("Authorization", ""))
    if g.user is None:
        abort(401)


@app.post("/charges")
@idempotent(store, principal=lambda: g.user, required=True, retention="30d", lease="2s", service="shop")
def charge() -> tuple[dict[str, Any], int]:
    payment = request.get_json()
    bank(g.user, payment)
    return {"order": payment["order"], "amount": payment["amount"]}, 201


def bank(user: str, payment: dict[str, Any]) -> None:
    """The effect outside: a line in the bank's book, and the time until the bank confirms it."""
    with open("bank.txt", "a") as book:
        print(user, payment["order"], payment["amount"], file=book)
    time.sleep(float(os.environ.get("BANK_SECONDS", "0.1")))
