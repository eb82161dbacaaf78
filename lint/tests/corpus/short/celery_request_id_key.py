# ruff: noqa
# expect file: clean
import stripe
from celery import shared_task


@shared_task(bind=True, max_retries=3)
def pay(self, invoice, cents):
    stripe.PaymentIntent.create(amount=cents, currency="eur", idempotency_key=self.request.id)
