# ruff: noqa
# expect file: EO402
import stripe

from saga import Saga


def charge(ctx):
    ctx["payment"] = stripe.PaymentIntent.create(amount=ctx["cents"], currency="eur", idempotency_key=ctx["order_id"]).id


def refund(ctx):
    stripe.Refund.create(payment_intent=ctx["payment"])


saga = Saga().add("charge", charge, compensation=refund)
