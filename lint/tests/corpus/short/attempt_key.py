# ruff: noqa
# expect file: EO304
import stripe
from celery import shared_task


@shared_task(bind=True, max_retries=3)
def pay(self, invoice, cents):
    key = f"{invoice}:{self.request.retries}"
    stripe.PaymentIntent.create(amount=cents, currency="eur", idempotency_key=key)
