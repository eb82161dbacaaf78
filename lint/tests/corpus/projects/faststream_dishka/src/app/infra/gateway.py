# ruff: noqa
import httpx
from app.application.interactors import PaymentGateway

class HttpPaymentGateway(PaymentGateway):
    def __init__(self, client: httpx.AsyncClient):
        self._client = client

    async def debit(self, account: str, amount: int) -> None:
        r = await self._client.post(f"/accounts/{account}/debits", json={"amount": amount})
        r.raise_for_status()
