# ruff: noqa
import abc
import json

from aiokafka import AIOKafkaConsumer


class Base(abc.ABC):
    topic: str

    async def run(self):
        consumer = AIOKafkaConsumer(self.topic, group_id="g", enable_auto_commit=False)
        await consumer.start()
        async for record in consumer:
            await self.handle(json.loads(record.value))
            await consumer.commit()

    @abc.abstractmethod
    async def handle(self, event): ...
