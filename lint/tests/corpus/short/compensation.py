# ruff: noqa
# expect file: EO402
from celery import shared_task
import stripe, requests
@shared_task
def checkout(order_id, amount):
    ch = stripe.Charge.create(amount=amount, currency="usd", idempotency_key=f"chg-{order_id}")
    try:
        requests.put(f"https://inv.example/reserve/{order_id}")
    except Exception:
        stripe.Refund.create(charge=ch.id)
        raise
