# ruff: noqa
from typing import Any, Callable
from kafka import KafkaConsumer

class Consumer:
    def __init__(self, topics: list[str], **kwargs: Any) -> None:
        self._consumer = KafkaConsumer(*topics, enable_auto_commit=False, **kwargs)
        self._handlers: dict[str, list[Callable[..., None]]] = {}

    def register_handler(self, topic: str, handler: Callable[..., None]) -> "Consumer":
        self._handlers.setdefault(topic, []).append(handler)
        return self

    def consume(self) -> None:
        for message in self._consumer:
            for handler in self._handlers.get(message.topic, []):
                handler(message.value)
            self._consumer.commit()
