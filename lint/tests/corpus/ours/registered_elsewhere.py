# ruff: noqa
"""Handlers of a worker that is made elsewhere, and of one that is made here without a guard."""

import effectonce as eo
import requests


def register(worker: eo.Worker) -> None:
    """Whoever makes the worker gives it a store or an inbox, or not: that is out of sight."""

    @worker.handler("order.placed")
    def place(message: eo.Message) -> None:  # expect: clean
        requests.post("https://erp.example/orders", json=message.data, timeout=5)


bare = eo.Worker(eo.connect_broker("amqp://mq"), queue="orders", consumer="erp")


@bare.handler("order.placed")
def place_again(message: eo.Message) -> None:  # expect: P11
    requests.post("https://erp.example/orders", json=message.data, timeout=5)
