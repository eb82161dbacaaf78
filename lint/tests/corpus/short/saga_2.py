# ruff: noqa
# expect file: clean
import stripe
from sagas import Saga, Step
def charge(ctx): stripe.Charge.create(amount=1, currency="usd", idempotency_key=ctx.order_id)
def refund(ctx): stripe.Refund.create(charge=ctx.charge_id, idempotency_key=f"refund-{ctx.order_id}")
saga = Saga([Step("charge", action=charge, compensate=refund)])
