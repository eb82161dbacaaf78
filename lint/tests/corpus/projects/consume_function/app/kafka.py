# ruff: noqa
import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable

from aiokafka import AIOKafkaConsumer

Handler = Callable[[dict], Awaitable[None]]


async def consume(topics: Iterable[str], group: str, handler: Handler) -> None:
    consumer = AIOKafkaConsumer(*topics, group_id=group, enable_auto_commit=False)
    await consumer.start()
    try:
        async for msg in consumer:
            payload = json.loads(msg.value)
            for attempt in range(3):
                try:
                    await handler(payload)
                    await consumer.commit()
                    break
                except Exception:
                    await asyncio.sleep(2**attempt)
    finally:
        await consumer.stop()
