# ruff: noqa
from sqlalchemy.ext.asyncio import async_sessionmaker

from app.repo import InboxRepository, LedgerRepository


class LedgerService:
    def __init__(self, sessions: async_sessionmaker) -> None:
        self._sessions = sessions

    async def deposit(self, event: dict) -> None:
        async with self._sessions() as session, session.begin():
            if not await InboxRepository(session).try_insert(event["event_id"]):
                return
            await LedgerRepository(session).append(event["account"], event["cents"])
