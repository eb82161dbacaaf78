# ruff: noqa
# expect file: P11
from taskiq import InMemoryBroker
from tortoise import fields
from tortoise.expressions import F
from tortoise.models import Model

broker = InMemoryBroker()


class Wallet(Model):
    id = fields.IntField(primary_key=True)
    coins = fields.IntField()


@broker.task
async def win(wallet: int, coins: int):
    await Wallet.filter(id=wallet).update(coins=F("coins") + coins)
