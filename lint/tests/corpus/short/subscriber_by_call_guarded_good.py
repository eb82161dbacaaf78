# ruff: noqa
# expect file: clean
import effectonce as eo
import httpx
from faststream.rabbit import RabbitBroker

client = httpx.AsyncClient()
store = eo.connect("redis://r/0")


@eo.once(store, key="order_id", retention="30d")
async def on_packed(order_id: str):
    await client.post("https://carrier.example/parcels", json={"order": order_id})


def wire(broker: RabbitBroker) -> None:
    broker.subscriber("orders.packed")(on_packed)
