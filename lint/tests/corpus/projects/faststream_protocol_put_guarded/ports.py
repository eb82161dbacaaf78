# ruff: noqa
from typing import Protocol
class Catalog(Protocol):
    async def publish_product(self, sku: str, data: dict) -> None: ...
