# ruff: noqa
# expect file: clean
from faststream.nats import NatsBroker
from tortoise import fields
from tortoise.models import Model

broker = NatsBroker()


class User(Model):
    id = fields.IntField(pk=True)
    name = fields.CharField(50)


@broker.subscriber("renames")
async def rename(event: dict):
    await User.filter(id=event["id"]).update(name=event["name"])
