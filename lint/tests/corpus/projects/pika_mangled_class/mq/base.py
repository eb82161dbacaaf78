# ruff: noqa
from abc import ABC, abstractmethod
import json
import pika

class Consumer(ABC):
    queue: str

    def __init__(self, url: str) -> None:
        self.connection = pika.BlockingConnection(pika.URLParameters(url))
        self.channel = self.connection.channel()
        self.channel.queue_declare(self.queue, durable=True)
        self.channel.basic_qos(prefetch_count=10)
        self.channel.basic_consume(self.queue, self.__on_message)

    def __on_message(self, channel, method, properties, body):
        try:
            self.handle(json.loads(body))
        except ValueError:
            channel.basic_nack(method.delivery_tag, requeue=False)
            return
        channel.basic_ack(method.delivery_tag)

    @abstractmethod
    def handle(self, message: dict) -> None: ...

    def run(self):
        self.channel.start_consuming()
