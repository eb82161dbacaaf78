# ruff: noqa
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from app.models import Inbox, LedgerEntry


class InboxRepository:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def try_insert(self, event_id: str) -> bool:
        try:
            async with self._session.begin_nested():
                self._session.add(Inbox(event_id=event_id))
        except IntegrityError:
            return False
        return True


class LedgerRepository:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def append(self, account: str, cents: int) -> None:
        self._session.add(LedgerEntry(account=account, cents=cents))
