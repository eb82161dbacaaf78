# ruff: noqa
# expect file: clean
from sqlalchemy import select
from db import Session
from models import Payout
async def settle(ctx, payout_id: int):
    async with Session() as session, session.begin():
        payout = (await session.execute(select(Payout).where(Payout.id == payout_id).with_for_update())).scalar_one()
        if payout.status == "settled":
            return
        payout.account.balance += payout.amount
        payout.status = "settled"
class WorkerSettings:
    functions = [settle]
