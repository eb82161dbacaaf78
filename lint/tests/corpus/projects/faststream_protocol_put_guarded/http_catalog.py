# ruff: noqa
import httpx
from ports import Catalog
class HttpCatalog(Catalog):
    def __init__(self):
        self.http = httpx.AsyncClient(base_url="https://catalog")
    async def publish_product(self, sku, data):
        (await self.http.put(f"/products/{sku}", json=data)).raise_for_status()
