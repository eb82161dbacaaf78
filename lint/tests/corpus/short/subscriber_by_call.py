# ruff: noqa
# expect file: P11
import httpx
from faststream.rabbit import RabbitBroker

client = httpx.AsyncClient()


async def on_packed(order: dict):
    await client.post("https://carrier.example/parcels", json=order)


def wire(broker: RabbitBroker) -> None:
    broker.subscriber("orders.packed")(on_packed)
