# ruff: noqa
from sqlalchemy.ext.asyncio import AsyncSession
from app.repos import BonusRepo
class UnitOfWork:
    def __init__(self, session_factory):
        self._factory = session_factory
    async def __aenter__(self):
        self.session: AsyncSession = self._factory()
        self.bonuses = BonusRepo(self.session)
        return self
    async def __aexit__(self, exc_type, *_):
        if exc_type:
            await self.session.rollback()
        await self.session.close()
    async def commit(self):
        await self.session.commit()
