# ruff: noqa
# expect file: P11
import requests

from bus import EventBus

bus = EventBus("amqp://")


@bus.on("order.placed")
def place(event):
    requests.post("https://erp.example/orders", json=event)


if __name__ == "__main__":
    bus.run("orders")
