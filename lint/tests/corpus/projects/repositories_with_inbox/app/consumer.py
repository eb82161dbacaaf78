# ruff: noqa
# expect file: clean
import json

from aiokafka import AIOKafkaConsumer

from app.service import LedgerService


class LedgerConsumer:
    def __init__(self, consumer: AIOKafkaConsumer, service: LedgerService) -> None:
        self._consumer = consumer
        self._service = service

    async def run(self) -> None:
        async for record in self._consumer:
            await self._service.deposit(json.loads(record.value))
            await self._consumer.commit()
