# ruff: noqa
# expect file: EO302
from celery import shared_task
import stripe
@shared_task
def pay(customer_id, amount):
    stripe.PaymentIntent.create(amount=amount, customer=customer_id, currency="usd", idempotency_key=f"{customer_id}-{amount}")
