# ruff: noqa
import stripe
class StripeGateway:
    def __init__(self, key):
        stripe.api_key = key
    def charge(self, customer, cents):
        return stripe.PaymentIntent.create(customer=customer, amount=cents, currency="usd", confirm=True)
