# ruff: noqa
# expect file: P11
from dishka.integrations.faststream import FromDishka, inject
from faststream.rabbit import RabbitRouter
from pydantic import BaseModel
from app.application.interactors import DebitAccount

class Debit(BaseModel):
    account: str
    amount: int

router = RabbitRouter()

@router.subscriber("debits")
@inject
async def on_debit(command: Debit, interactor: FromDishka[DebitAccount]) -> None:
    await interactor(command.account, command.amount)
