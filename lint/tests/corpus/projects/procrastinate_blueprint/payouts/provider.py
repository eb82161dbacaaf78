# ruff: noqa
from __future__ import annotations
import os
import aiohttp

class ProviderClient:
    def __init__(self, base: str, token: str):
        self.base, self.token = base, token
        self._session: aiohttp.ClientSession | None = None

    @classmethod
    def from_env(cls) -> ProviderClient:
        return cls(os.environ["PROVIDER"], os.environ["TOKEN"])

    async def __aenter__(self) -> ProviderClient:
        self._session = aiohttp.ClientSession(self.base, headers={"Authorization": self.token})
        return self

    async def __aexit__(self, *exc):
        await self._session.close()

    async def transfer(self, seller_id, cents):
        async with self._session.post("/transfers", json={"to": seller_id, "cents": cents}) as response:
            response.raise_for_status()
