# ruff: noqa
# expect file: EO402
import stripe, logging
from celery import shared_task
from inventory import client
log = logging.getLogger(__name__)
@shared_task(bind=True)
def place_order(self, order_id, amount):
    pi = stripe.PaymentIntent.create(amount=amount, currency="usd", idempotency_key=f"pi-{order_id}")
    try:
        client.reserve(order_id)
    except client.OutOfStock:
        log.info("compensating")
        compensate(pi.id)
        raise
def compensate(pi):
    stripe.Refund.create(payment_intent=pi)
