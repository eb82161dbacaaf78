# ruff: noqa
import stripe


class StripeGateway:
    def __init__(self, api_key: str) -> None:
        self._client = stripe.StripeClient(api_key)

    def charge(self, customer: str, cents: int, *, key: str) -> str:
        intent = self._client.payment_intents.create(
            params={"amount": cents, "currency": "usd", "customer": customer, "confirm": True},
            options={"idempotency_key": key},
        )
        return intent.id
