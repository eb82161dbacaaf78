# ruff: noqa
# expect file: P11
from taskiq import TaskiqDepends
from app.broker import broker
from app.deps import get_uow
from app.uow import UnitOfWork
@broker.task(retry_on_error=True, max_retries=3)
async def give_bonus(user_id: int, amount: int, uow: UnitOfWork = TaskiqDepends(get_uow)):
    async with uow:
        await uow.bonuses.add_one(user_id=user_id, amount=amount)
        await uow.commit()
