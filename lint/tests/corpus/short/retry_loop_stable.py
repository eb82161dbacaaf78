# ruff: noqa
# expect file: clean
import time, stripe
from celery import shared_task
@shared_task
def pay(order_id, amount):
    key = f"pay-{order_id}"
    for attempt in range(5):
        try:
            stripe.Charge.create(amount=amount, currency="usd", idempotency_key=key)
            break
        except stripe.error.APIConnectionError:
            time.sleep(1)
