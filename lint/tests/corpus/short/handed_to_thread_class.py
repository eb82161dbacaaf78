# ruff: noqa
# expect file: EO201, P11
import json
from queue import Queue
from threading import Thread

import pika
import requests


class Shipper(Thread):
    def __init__(self, orders: Queue) -> None:
        super().__init__(daemon=True)
        self.orders = orders

    def run(self) -> None:
        for order in iter(self.orders.get, None):
            requests.post("https://carrier.example/parcels", json=order, timeout=10)


class Consumer:
    def __init__(self) -> None:
        self.orders = Queue()
        Shipper(self.orders).start()

    def on_order(self, channel, method, properties, body):
        self.orders.put(json.loads(body))
        channel.basic_ack(method.delivery_tag)


channel = pika.BlockingConnection().channel()
channel.basic_consume(queue="orders", on_message_callback=Consumer().on_order)
