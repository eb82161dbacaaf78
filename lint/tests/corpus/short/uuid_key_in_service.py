# ruff: noqa
# expect file: EO301
import uuid
from dataclasses import dataclass, field

import stripe
from celery import shared_task


def new_key() -> str:
    return uuid.uuid4().hex


@dataclass
class Payment:
    customer: str
    cents: int
    key: str = field(default_factory=new_key)


class Cashier:
    def take(self, payment: Payment):
        stripe.PaymentIntent.create(amount=payment.cents, currency="eur", customer=payment.customer, idempotency_key=payment.key)


@shared_task
def charge(customer, cents):
    Cashier().take(Payment(customer, cents))
