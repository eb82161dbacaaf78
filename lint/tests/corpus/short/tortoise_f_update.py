# ruff: noqa
# expect file: P11
from faststream.nats import NatsBroker
from tortoise.expressions import F
from tortoise import fields
from tortoise.models import Model

broker = NatsBroker()


class Account(Model):
    id = fields.IntField(pk=True)
    cents = fields.IntField()


@broker.subscriber("deposits", durable="d", stream="bank")
async def deposit(event: dict):
    await Account.filter(id=event["account"]).update(cents=F("cents") + event["cents"])
