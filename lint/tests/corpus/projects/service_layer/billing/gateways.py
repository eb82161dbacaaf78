# ruff: noqa
from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import stripe

from billing import settings


@dataclass(frozen=True)
class ChargeResult:
    id: str
    ok: bool


class PaymentGateway(ABC):
    @abstractmethod
    def charge(self, customer: str, cents: int) -> ChargeResult: ...


class StripeGateway(PaymentGateway):
    def __init__(self, api_key: str = settings.STRIPE_KEY) -> None:
        self._client = stripe.StripeClient(api_key)

    def charge(self, customer: str, cents: int) -> ChargeResult:
        intent = self._client.payment_intents.create(
            params={"amount": cents, "currency": "usd", "customer": customer, "confirm": True}
        )
        return ChargeResult(id=intent.id, ok=intent.status == "succeeded")
