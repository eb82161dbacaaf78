# ruff: noqa
from sqlalchemy.ext.asyncio import AsyncSession

from app.models import LedgerEntry


class LedgerRepository:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def append(self, account: str, cents: int) -> None:
        self._session.add(LedgerEntry(account=account, cents=cents))
        await self._session.commit()
