# ruff: noqa
import json
import logging
from confluent_kafka import Consumer, KafkaException

logger = logging.getLogger(__name__)

class EventConsumer:
    def __init__(self, conf, topics):
        self._consumer = Consumer({**conf, "enable.auto.commit": False})
        self._consumer.subscribe(topics)
        self._handlers = {}
        self._running = True

    def on(self, event_type):
        def register(fn):
            self._handlers.setdefault(event_type, []).append(fn)
            return fn
        return register

    def run(self):
        while self._running:
            msg = self._consumer.poll(1.0)
            if msg is None:
                continue
            if msg.error():
                raise KafkaException(msg.error())
            event = json.loads(msg.value())
            for handler in self._handlers.get(event["type"], []):
                handler(event["data"])
            self._consumer.commit(message=msg, asynchronous=False)
