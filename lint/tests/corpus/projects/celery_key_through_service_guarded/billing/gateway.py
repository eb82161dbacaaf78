# ruff: noqa
import stripe
class Gateway:
    def __init__(self, key):
        self._client = stripe.StripeClient(key)
    def charge(self, *, customer, cents, key):
        return self._client.payment_intents.create(
            params={"customer": customer, "amount": cents, "currency": "eur"},
            options={"idempotency_key": key},
        )
