# ruff: noqa
import abc
import json

from kafka import KafkaConsumer


class BaseConsumer(abc.ABC):
    topic: str

    def __init__(self):
        self.consumer = KafkaConsumer(self.topic, group_id="app", enable_auto_commit=False)

    def start(self):
        for message in self.consumer:
            self.handle(json.loads(message.value))
            self.consumer.commit()

    @abc.abstractmethod
    def handle(self, event):
        """Do the work."""
