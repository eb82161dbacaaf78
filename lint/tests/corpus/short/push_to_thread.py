# ruff: noqa
# expect file: P11
import asyncio
import json

from aiokafka import AIOKafkaConsumer
from firebase_admin import initialize_app, messaging

initialize_app()


async def push(token: str, title: str) -> None:
    message = messaging.Message(notification=messaging.Notification(title=title), token=token)
    await asyncio.to_thread(messaging.send, message)


async def run() -> None:
    consumer = AIOKafkaConsumer("notifications", group_id="push", enable_auto_commit=False)
    await consumer.start()
    try:
        async for record in consumer:
            note = json.loads(record.value)
            await push(note["token"], note["title"])
            await consumer.commit()
    finally:
        await consumer.stop()
