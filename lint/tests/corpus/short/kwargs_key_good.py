# ruff: noqa
# expect file: clean
import stripe
from celery import shared_task


def options(order):
    return {"idempotency_key": f"order-{order['id']}", "api_key": "sk"}


@shared_task
def pay(order):
    stripe.PaymentIntent.create(amount=order["cents"], currency="eur", **options(order))
