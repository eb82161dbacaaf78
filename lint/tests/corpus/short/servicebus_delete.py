# ruff: noqa
# expect file: EO201
import asyncio
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus import ServiceBusReceiveMode
from app import store
async def main():
    async with ServiceBusClient.from_connection_string("c") as client:
        async with client.get_queue_receiver(queue_name="q", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver:
            async for msg in receiver:
                await store.save_order(str(msg))
