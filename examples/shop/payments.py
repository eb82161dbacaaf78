"""Calls to the payment provider, each written down before it is made: what a dead process leaves behind is known."""

import httpx
from msgspec import Struct
from orders import store
from settings import LEASE, PAYMENTS

import effectonce as eo
from effectonce.providers import Verdict

intents = eo.Intents(store, scope="shop")
provider = httpx.Client(base_url=PAYMENTS, timeout=10)


class Payment(Struct):
    order: str
    amount: int
    card: str


class Receipt(Struct):
    id: str


class CardDeclined(Exception):
    http_status = 402


@intents.operation("stripe", "charge", lease=LEASE)
def charge(intent: eo.Intent[Payment]) -> Receipt:
    return ask("/charges", intent)


@intents.operation("stripe", "refund", lease=LEASE)
def refund(intent: eo.Intent[Payment]) -> Receipt:
    return ask("/refunds", intent)


def ask(path: str, intent: eo.Intent[Payment]) -> Receipt:
    payment = intent.request
    body = {"order": payment.order, "amount": payment.amount, "card": payment.card}
    answer = provider.post(path, json=body, headers=intent.headers)  # with the key of this intent
    if answer.status_code == 402:
        raise CardDeclined(f"the card of order {payment.order} was declined")
    answer.raise_for_status()
    return Receipt(answer.json()["id"])


@intents.reconcile("stripe")
def look_up(intent: eo.Intent[Payment]) -> Verdict:
    """When the provider may have forgotten the key: is it on its list?"""
    found = provider.get(f"/{intent.operation}s", params={"order": intent.request.order}).json()["data"]
    return Verdict.success(Receipt(found[0]["id"])) if found else Verdict.unknown("not listed")
