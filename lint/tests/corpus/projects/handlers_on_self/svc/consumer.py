# ruff: noqa
# expect file: P11
from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from aiokafka import AIOKafkaConsumer, ConsumerRecord

from svc.repository import LedgerRepository
from svc.settings import Settings

logger = logging.getLogger(__name__)
Handler: TypeAlias = Callable[[dict[str, Any]], Awaitable[None]]


class EventConsumer:
    def __init__(self, settings: Settings, repository: LedgerRepository) -> None:
        self._consumer = AIOKafkaConsumer(
            settings.topic,
            bootstrap_servers=settings.bootstrap,
            group_id=settings.group,
            enable_auto_commit=False,
        )
        self._repository = repository
        self._handlers: dict[str, Handler] = {
            "deposit": self._on_deposit,
            "closed": self._on_closed,
        }

    async def run(self) -> None:
        await self._consumer.start()
        try:
            async for record in self._consumer:
                await self._dispatch(record)
                await self._consumer.commit()
        finally:
            await self._consumer.stop()

    async def _dispatch(self, record: ConsumerRecord) -> None:
        event = json.loads(record.value)
        handler = self._handlers.get(event["type"])
        if handler is None:
            logger.debug("unknown event %s", event["type"])
            return
        await handler(event)

    async def _on_deposit(self, event: dict[str, Any]) -> None:
        await self._repository.append(event["account"], event["amount"])

    async def _on_closed(self, event: dict[str, Any]) -> None:
        await self._repository.close(event["account"])
