# ruff: noqa
import json

import pika


class Publisher:
    def __init__(self, url):
        self._channel = pika.BlockingConnection(pika.URLParameters(url)).channel()

    def order_shipped(self, order_id):
        self._channel.basic_publish("events", "order.shipped", json.dumps({"id": order_id}))


publisher = Publisher("amqp://mq")
