# ruff: noqa
from billing.gateways import PaymentGateway, StripeGateway


class BillingService:
    def __init__(self, gateway: PaymentGateway | None = None) -> None:
        self.gateway = gateway or StripeGateway()

    def bill(self, customer: str, lines: list[dict]) -> str:
        total = sum(line["cents"] for line in lines)
        if total <= 0:
            raise ValueError("nothing to bill")
        return self.gateway.charge(customer, total).id
