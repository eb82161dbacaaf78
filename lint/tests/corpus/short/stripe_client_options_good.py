# ruff: noqa
# expect file: clean
import stripe
from celery import shared_task

client = stripe.StripeClient("sk")


@shared_task(acks_late=True)
def monthly(invoice, cents):
    client.payment_intents.create(
        params={"amount": cents, "currency": "eur"}, options={"idempotency_key": f"invoice-{invoice}"}
    )
