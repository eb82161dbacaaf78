# ruff: noqa
# expect file: P11
import json
from typing import Callable

import httpx
import nats

Handler = Callable[[dict], None]


def logged(inner: Handler) -> Handler:
    def call(event):
        print(event)
        return inner(event)

    return call


def timed(inner: Handler) -> Handler:
    def call(event):
        return inner(event)

    return call


def compose(handler: Handler, *layers) -> Handler:
    for layer in layers:
        handler = layer(handler)
    return handler


def ship(event):
    httpx.post("https://carrier.example/parcels", json=event)


pipeline = compose(ship, logged, timed)


async def main():
    nc = await nats.connect()
    sub = await nc.jetstream().subscribe("parcels", durable="p")
    async for msg in sub.messages:
        pipeline(json.loads(msg.data))
        await msg.ack()
