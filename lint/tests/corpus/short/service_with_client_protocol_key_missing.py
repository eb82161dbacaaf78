# ruff: noqa
# expect file: P11, EO303
from typing import Protocol

import stripe
from celery import shared_task


class Gateway(Protocol):
    def charge(self, customer: str, cents: int) -> str: ...


class StripeGateway:
    def __init__(self, key):
        self.client = stripe.StripeClient(key)

    def charge(self, customer, cents):
        return self.client.payment_intents.create(params={"amount": cents, "currency": "eur", "customer": customer}).id


class Billing:
    def __init__(self, gateway: Gateway):
        self.gateway = gateway

    def bill(self, customer, cents):
        self.gateway.charge(customer, cents)


billing = Billing(StripeGateway("sk"))


@shared_task(acks_late=True)
def monthly(customer, cents):
    billing.bill(customer, cents)
