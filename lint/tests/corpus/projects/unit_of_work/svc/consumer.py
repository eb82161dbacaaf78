# ruff: noqa
# expect file: clean
import json

from aiokafka import AIOKafkaConsumer

from svc.uow import UnitOfWork


class EventConsumer:
    def __init__(self, consumer: AIOKafkaConsumer, uow: UnitOfWork) -> None:
        self.consumer = consumer
        self.uow = uow

    async def run(self) -> None:
        async for record in self.consumer:
            await self.handle(json.loads(record.value))
            await self.consumer.commit()

    async def handle(self, event: dict) -> None:
        async with self.uow as tx:
            fresh = await tx.inbox.add(event["event_id"])
            if not fresh:
                return
            await tx.ledger.append(event["account"], event["amount"])
            await tx.commit()
