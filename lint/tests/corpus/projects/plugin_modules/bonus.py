# ruff: noqa
# expect file: P11
from taskiq import AsyncBroker

from .store import add


async def grant(member: str, points: int):
    await add(member, points)


def install(broker: AsyncBroker):
    broker.task(task_name="grant")(grant)
