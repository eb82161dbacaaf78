# ruff: noqa
# expect file: EO304
import time, stripe
from celery import shared_task
@shared_task
def pay(order_id, amount):
    for attempt in range(5):
        try:
            stripe.Charge.create(amount=amount, currency="usd", idempotency_key=f"{order_id}-{attempt}")
            break
        except stripe.error.APIConnectionError:
            time.sleep(1)
