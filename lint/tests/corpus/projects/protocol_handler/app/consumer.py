# ruff: noqa
# expect file: P11
import json
from typing import Protocol

from aiokafka import AIOKafkaConsumer

from app.repo import LedgerRepository


class Handler(Protocol):
    async def __call__(self, event: dict) -> None: ...


class DepositHandler:
    def __init__(self, repo: LedgerRepository) -> None:
        self.repo = repo

    async def __call__(self, event: dict) -> None:
        await self.repo.append(event["account"], event["cents"])


class Consumer:
    def __init__(self, consumer: AIOKafkaConsumer, handler: Handler) -> None:
        self._consumer = consumer
        self._handler = handler

    async def run(self) -> None:
        async for record in self._consumer:
            await self._handler(json.loads(record.value))
            await self._consumer.commit()
