# ruff: noqa
from stripe import PaymentIntent as PI


def take(customer, cents):
    return PI.create(customer=customer, amount=cents, currency="eur", confirm=True)
