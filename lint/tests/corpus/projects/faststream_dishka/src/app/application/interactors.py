# ruff: noqa
from dataclasses import dataclass
from typing import Protocol

class PaymentGateway(Protocol):
    async def debit(self, account: str, amount: int) -> None: ...

@dataclass
class DebitAccount:
    gateway: PaymentGateway

    async def __call__(self, account: str, amount: int) -> None:
        await self.gateway.debit(account, amount)
