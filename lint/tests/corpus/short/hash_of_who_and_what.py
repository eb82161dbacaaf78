# ruff: noqa
# expect file: EO302
import hashlib

import stripe
from celery import shared_task


def key_of(*parts):
    return hashlib.sha1("|".join(map(str, parts)).encode()).hexdigest()


@shared_task
def bill(tenant, cents, currency):
    stripe.PaymentIntent.create(amount=cents, currency=currency, idempotency_key=key_of(tenant, cents, currency))
