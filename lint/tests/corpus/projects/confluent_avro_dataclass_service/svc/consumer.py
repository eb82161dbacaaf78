# ruff: noqa
# expect file: P11
from confluent_kafka import DeserializingConsumer
from svc.container import Container
class Runner:
    def __init__(self, container: Container):
        self.container = container
        self.consumer = DeserializingConsumer(container.settings.kafka)
    def run(self):
        self.consumer.subscribe([self.container.settings.topic])
        while True:
            message = self.consumer.poll(1)
            if message is None or message.error():
                continue
            self.container.usage_service.record(message.value())
            self.consumer.commit(message)
