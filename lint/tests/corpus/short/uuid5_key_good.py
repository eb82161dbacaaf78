# ruff: noqa
# expect file: clean
import uuid

import stripe
from celery import shared_task

SPACE = uuid.UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")


@shared_task(autoretry_for=(stripe.APIConnectionError,))
def pay(invoice, cents):
    key = str(uuid.uuid5(SPACE, f"invoice:{invoice}"))
    stripe.PaymentIntent.create(amount=cents, currency="eur", idempotency_key=key)
