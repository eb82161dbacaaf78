# ruff: noqa
import json

from confluent_kafka import Producer


class EventBus:
    def __init__(self):
        self._producer = Producer({"bootstrap.servers": "k"})

    def emit(self, topic, event):
        self._producer.produce(topic, json.dumps(event).encode())
        self._producer.flush()
