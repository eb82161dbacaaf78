# ruff: noqa
# expect file: clean
import dramatiq, stripe
class Payments:
    def __init__(self):
        self.stripe = stripe.StripeClient("sk")
    def charge(self, order):
        return self.stripe.charges.create({"amount": order["cents"], "currency": "eur"}, {"idempotency_key": self._key(order)})
    def _key(self, order):
        return f"order-{order['id']}-charge"
payments = Payments()
@dramatiq.actor(max_retries=10)
def charge(order):
    payments.charge(order)
