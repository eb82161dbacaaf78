# ruff: noqa
# expect file: P11
import asyncio, json
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver
from azure.servicebus import ServiceBusReceivedMessage
from settings import settings
from orders import OrderProcessor

class ReceiverService:
    def __init__(self, processor: OrderProcessor) -> None:
        self.client: ServiceBusClient | None = None
        self.receiver: ServiceBusReceiver | None = None
        self.processor = processor
        self._running = False

    async def start(self):
        self.client = ServiceBusClient.from_connection_string(settings.conn)
        self.receiver = self.client.get_queue_receiver(settings.queue)
        self._running = True
        await self._loop()

    async def _loop(self):
        while self._running:
            messages = await self.receiver.receive_messages(max_message_count=10, max_wait_time=5)
            for message in messages:
                await self._handle(message)

    async def _handle(self, message: ServiceBusReceivedMessage):
        try:
            await self.processor.process(json.loads(str(message)))
            await self.receiver.complete_message(message)
        except Exception:
            await self.receiver.abandon_message(message)
