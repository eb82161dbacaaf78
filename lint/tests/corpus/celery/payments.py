# ruff: noqa
"""Charging, refunding and paying out in Celery tasks."""

import logging
import uuid
from decimal import Decimal

import stripe
from celery import Celery, shared_task

logger = logging.getLogger(__name__)
app = Celery("billing", broker="amqp://localhost")


@app.task
def charge_customer(customer_id, amount):  # expect: P11, EO303
    """The textbook double charge."""
    customer = load_customer(customer_id)
    stripe.PaymentIntent.create(amount=amount, currency="usd", customer=customer.stripe_id, confirm=True)


@app.task(bind=True, max_retries=3)
def charge_with_retry(self, order_id, amount):  # expect: P11, EO303
    try:
        stripe.Charge.create(amount=amount, currency="eur", metadata={"order": order_id})
    except stripe.error.APIConnectionError as exc:
        raise self.retry(exc=exc, countdown=30)


@app.task(acks_late=True)
def charge_with_key(order_id, amount):  # expect: clean
    stripe.PaymentIntent.create(
        amount=amount,
        currency="usd",
        confirm=True,
        idempotency_key=f"order-{order_id}-charge",
    )


@shared_task(acks_late=True)
def charge_with_random_key(order_id, amount):  # expect: EO301
    key = str(uuid.uuid4())
    stripe.PaymentIntent.create(amount=amount, currency="usd", idempotency_key=key)


@shared_task
def refund(charge_id, reason=None):  # expect: P11, EO303
    logger.info("refunding %s because %s", charge_id, reason)
    return stripe.Refund.create(charge=charge_id, reason=reason or "requested_by_customer").id


@shared_task(bind=True, autoretry_for=(stripe.error.RateLimitError,), retry_backoff=True)
def pay_out(self, payout_id, amount: Decimal):  # expect: clean
    stripe.Payout.create(amount=int(amount * 100), currency="eur", idempotency_key=f"payout:{payout_id}")


@shared_task(bind=True)
def key_with_retry_count(self, invoice_id):  # expect: EO304
    stripe.Invoice.create(customer=invoice_id, idempotency_key=f"{invoice_id}:{self.request.retries}")


@shared_task
def sync_customer(customer_id, email):  # expect: clean
    """Setting a value twice is setting it once."""
    stripe.Customer.modify(customer_id, email=email)


@shared_task
def report_balance():  # expect: clean
    balance = stripe.Balance.retrieve()
    logger.info("balance is %s", balance.available)


def load_customer(customer_id):
    return stripe.Customer.retrieve(customer_id)
