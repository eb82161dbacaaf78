# ruff: noqa
from typing import Generic, TypeVar
from sqlalchemy import insert
from app.models import Bonus
T = TypeVar("T")
class BaseRepo(Generic[T]):
    model: type[T]
    def __init__(self, session):
        self.session = session
    async def add_one(self, **values):
        await self.session.execute(insert(self.model).values(**values))
class BonusRepo(BaseRepo[Bonus]):
    model = Bonus
