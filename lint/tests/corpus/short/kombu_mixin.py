# ruff: noqa
# expect file: P11
import json
from kombu import Connection, Exchange, Queue
from kombu.mixins import ConsumerMixin
import requests
class Worker(ConsumerMixin):
    def __init__(self, connection): self.connection = connection
    def get_consumers(self, Consumer, channel):
        return [Consumer(queues=[Queue("tasks")], callbacks=[self.on_task], accept=["json"])]
    def on_task(self, body, message):
        requests.post("https://api.example.com/jobs", json=body)
        message.ack()
