# ruff: noqa
# expect file: clean
import stripe
from celery import shared_task


class Compensator:
    def run(self, order):
        stripe.Refund.create(charge=order["charge"], idempotency_key=f"refund:{order['id']}")


@shared_task(autoretry_for=(stripe.APIConnectionError,))
def order_failed(order):
    Compensator().run(order)
